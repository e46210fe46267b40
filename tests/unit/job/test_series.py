"""What a running job says of itself to the node's metrics, and that it says nothing once it is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.shm import job_note, note_page
from hyperpod_kit.checkpoint.agent.shm.job_note import JobNote, LockedNote, TimeNote
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.run import series
from tests.unit.job.conftest import Job

UID = os.getuid()
NOTE = JobNote("7", 3, 100.5, 4, 0.5, {"crash": 2})

HOLD = """
import json, sys
from hyperpod_kit.checkpoint.agent.shm.job_note import LockedNote, JobNote
held = LockedNote(sys.argv[1], int(sys.argv[2]), sys.argv[3])
for line in sys.stdin:
    held.put(JobNote(*json.loads(line)))
    print("put", flush=True)
held.remove_file_and_unlock()
"""


class Holder:
    """A `job run` as far as its note goes: locks are a process's, so that it takes another one to see them."""

    def __init__(self, folder: Path, number: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), str(UID), number],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def put(self, note: JobNote) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(note) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "put\n"

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    found = Holder(tmp_path, "7")
    yield found
    found.process.kill()
    found.process.communicate()


def notes(folder: Path) -> List[JobNote]:
    return [one.note for one in job_note.read_notes_of_live_jobs(str(folder))]


def test_a_note_counts_as_long_as_its_job_run_lives(tmp_path: Path, holder: Holder) -> None:
    holder.put(NOTE)
    (found,) = job_note.read_notes_of_live_jobs(str(tmp_path))
    assert (found.uid, found.note) == (UID, NOTE)
    path = tmp_path / f"hpk-{UID}-7.job"
    assert path.stat().st_size == note_page.PAGE and path.stat().st_mode & 0o777 == 0o600
    job_note.remove_stale(str(tmp_path), UID)
    assert notes(tmp_path) == [NOTE]
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    assert path.exists() and not notes(tmp_path)
    (tmp_path / "hpk-7.job").write_text("another's file")
    job_note.remove_stale(str(tmp_path), UID)
    assert [one.name for one in tmp_path.iterdir()] == ["hpk-7.job"]


def test_two_of_one_job_do_not_wait_for_each_other(
    tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.put(NOTE)
    with pytest.raises(BlockingIOError):
        LockedNote(str(tmp_path), UID, "7")
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path))
    with series.JobSeries(str(tmp_path / "state"), {}) as told:
        told("start", {"job": "7", "number": "7", "restart": 0})
        told("attempt", {"attempt": "7.0.0", "step": None})
    assert notes(tmp_path) == [NOTE]


def test_a_note_goes_with_a_job_run_that_ends(tmp_path: Path, holder: Holder) -> None:
    holder.put(NOTE)
    holder.close()
    assert holder.process.returncode == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"job": 7},
        {"job": '7",uid="0'},
        {"job": "7\n8"},
        {"attempts": -1},
        {"attempts": True},
        {"started": "now"},
        {"lost_steps": 1.5},
        {"goodput": 1.01},
        {"goodput": float("nan")},
        {"ends": {'crash"} 1\nup': 1}},
        {"ends": {"crash": None}},
        {"ends": {"a" * number: 1 for number in range(1, 18)}},
        {"ends": []},
        {"more": 1},
    ],
)
def test_a_note_of_odd_types_is_none(changes: Dict[str, Any]) -> None:
    said = json.loads(json.dumps(NOTE._asdict()))
    assert job_note._parse_job_note(said) == NOTE
    assert job_note._parse_job_note(json.loads(json.dumps({**said, **changes}))) is None
    assert job_note._parse_job_note(7) is None


@pytest.mark.full
def test_a_job_tells_of_all_its_runs_and_takes_its_word_back(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in the first run, a requeue, the second run: what each event left is what the ledger says."""
    shm = tmp_path / "shm"
    shm.mkdir(0o700)
    monkeypatch.setenv("HPK_SHM_DIR", str(shm))
    told: List[JobNote] = []
    times: List[TimeNote] = []
    monkeypatch.setattr(
        LockedNote, "put", lambda self, note: (told if isinstance(note, JobNote) else times).append(note)
    )
    state = str(job.root / ".hpk")
    with series.JobSeries(state, job.environment) as first:
        assert job.run("--steps", "12", "--crash", "8:3", "--once", str(job.base / "once"), told=first) == 0
        assert sorted(one.name for one in shm.iterdir()) == [
            f"hpk-{UID}-7.{ending}" for ending in ("job", "step", "time")
        ]
    assert not list(shm.iterdir())
    # What the ranks took of a checkpoint is an event of its own, after which these three are the same.
    assert list(dict.fromkeys((one.attempts, one.started is not None, tuple(one.ends)) for one in told)) == [
        (0, False, ()),
        (1, True, ()),
        (1, False, ("crash",)),
        (2, True, ("crash",)),
        (2, False, ("done", "crash")),
    ]
    last = told[-1]
    told.clear()
    assert times and {one.job for one in times} == {"7"}
    assert last.job == "7" and last.lost_steps in (2, 3) and last.goodput is not None and 0 < last.goodput < 1
    with series.JobSeries(state, job.environment) as second:
        assert job.run("--steps", "14", restart=1, told=second) == 0
    assert (
        told[0].attempts == 2
        and told[0].lost_steps == last.lost_steps
        and told[-1].attempts == 3
        and told[-1].ends == {"done": 2, "crash": 1}
    )


def test_no_job_fails_for_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "nowhere"))
    with series.JobSeries(str(tmp_path), {}) as told:
        report = JobReport(os.open(os.devnull, os.O_WRONLY), event_listener=told)
        report("start", "words", job="7", number="7", restart=0)
        report("attempt", "words", attempt="7.0.0", step=None)
    assert not list(tmp_path.iterdir())
