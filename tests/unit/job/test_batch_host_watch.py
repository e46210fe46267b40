"""The root hangs on one host alone: a thread of `job run` leaves it; a rank's thread tells `job run`."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.job.program import cli_look
from hyperpod_kit.job.run.batch_host_watch import BatchHostWatch, is_drained_for_mount_unlike_most
from hyperpod_kit.job.step import storage
from hyperpod_kit.job.step.storage import LOOKS_INSIDE, Probe, RootWatch
from hyperpod_kit.slurm.environment import JobEnvironment
from tests.support.runner import RecordingRunner
from tests.support.wait import until

JOB = JobEnvironment.read({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})


def shown(**reasons: str) -> str:
    return "\n".join(
        f"NodeName={name} State={'MIXED+DRAIN' if reason else 'MIXED'} Reason={reason} [root@2026-01-01T00:00:00]"
        for name, reason in reasons.items()
    )


@pytest.mark.parametrize(
    ("reasons", "alone"),
    [
        ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": "", "n3": ""}, True),
        ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": ""}, True),
        ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": "hyperpod-kit:mount:fsx:hung", "n3": ""}, False),  # an outage
        ({"n1": "a fan", "n2": "", "n3": ""}, False),
        ({"n1": "", "n2": "hyperpod-kit:mount:fsx:hung", "n3": ""}, False),
    ],
)
def test_only_a_node_that_is_drained_for_its_mount_is_left(reasons: dict[str, str], alone: bool) -> None:
    assert is_drained_for_mount_unlike_most(RecordingRunner({"scontrol -o show node": shown(**reasons)}), "n1") is alone


def test_a_reason_that_has_outlived_its_drain_does_not_count() -> None:
    """24.11 leaves it standing when the node is undrained."""
    reasons = dict.fromkeys(("n1", "n2", "n3"), "hyperpod-kit:mount:fsx:hung")
    own, *others = shown(**reasons).splitlines()
    since = [line.replace("+DRAIN", "") for line in others]
    assert is_drained_for_mount_unlike_most(RecordingRunner({"scontrol -o show node": "\n".join([own, *since])}), "n1")
    since.append(own.replace("+DRAIN", ""))
    assert not is_drained_for_mount_unlike_most(RecordingRunner({"scontrol -o show node": "\n".join(since)}), "n1")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the health timer would say that it doubts a mount."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def test_the_job_is_marked_and_ended_once_and_only_while_the_root_is_away(tmp_path: Path, marks: Path) -> None:
    state, ended = tmp_path / "state", queue.Queue[int]()
    state.mkdir()
    runner = RecordingRunner(
        {
            "scontrol -o show node": shown(n1="hyperpod-kit:mount:fsx:hung", n2=""),
            "squeue job 7": "JobId=7 JobState=RUNNING Requeue=1 Comment=mine",
            "scontrol update jobid=7": "",
        }
    )
    with BatchHostWatch(
        runner, JOB, "n1", str(state), marks=str(marks), check_interval=0.01, patience=0.05, end=ended.put
    ):
        (marks / "data").write_text("hung: another mount\n")
        with pytest.raises(queue.Empty):
            ended.get(timeout=0.3)  # the root itself answers
        state.rename(tmp_path / "away")  # in one step: the look at it may be writing there
        assert ended.get(timeout=20) == 74
        with pytest.raises(queue.Empty):
            ended.get(timeout=0.2)
    assert runner.calls[-1] == "scontrol update jobid=7 comment=mine hpk:elsewhere"
    assert runner.calls.count(runner.calls[-1]) == 1


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {
            "scontrol -o show node": shown(n1="hyperpod-kit:mount:fsx:hung", n2=""),
            "squeue job 7": "JobId=7 JobState=RUNNING Requeue=0 Comment=(null)",
        },
    ],
)
def test_nobody_is_ended_whom_nobody_would_queue_again(tmp_path: Path, marks: Path, answers: dict[str, str]) -> None:
    ended, runner = queue.Queue[int](), RecordingRunner(dict(answers))
    (marks / "fsx").write_text("hung\n")
    with BatchHostWatch(
        runner, JOB, "n1", str(tmp_path / "no"), marks=str(marks), check_interval=0.01, patience=0.0, end=ended.put
    ):
        until(lambda: len(runner.calls) > 3, what="questions")
    assert ended.empty()


def test_the_sweep_queues_it_again_and_takes_the_mark_away() -> None:
    runner = RecordingRunner(
        {
            "squeue job": "JobId=7 JobState=FAILED Requeue=1 BatchHost=n1 NodeList=n[1-2] "
            "Comment=mine hpk:elsewhere\nJobId=8 JobState=FAILED Requeue=1 BatchHost=n1 "
            "NodeList=n[1-2] Comment=mine\nJobId=9 JobState=COMPLETING Requeue=1 BatchHost=n1 "
            "NodeList=n1 Comment=hpk:elsewhere",
            "scontrol requeue 7": "",
            "scontrol update": "",
        }
    )
    found, _ = cli_look.find_orphans(cli_look.jobs(runner))
    assert [one.job_id for one in found] == ["7"] and [problem for _, problem in cli_look.sweep(runner, found)] == [""]
    assert runner.calls[1:] == ["scontrol requeue 7", "scontrol update jobid=7 comment=mine"]


def test_leaving_takes_the_children_along(tmp_path: Path) -> None:
    program = (
        "import subprocess, threading; from hyperpod_kit.job.run import batch_host_watch\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "threading.Thread(target=batch_host_watch.kill_children_and_exit, args=(74,)).start()\n"
        "threading.Event().wait(60)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=30)
    assert done.returncode == 74
    until(lambda: not Path("/proc", done.stdout.decode().strip()).exists(), what="the end of the child")


def test_a_rank_tells_of_a_root_that_goes_away_and_comes_back(tmp_path: Path, marks: Path) -> None:
    state, told = tmp_path / "state", queue.Queue[bool]()
    watch = RootWatch(str(state), told.put, marks=str(marks), check_interval=0.01)
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)  # no check doubts a mount: nobody is asked
    (marks / "fsx").write_text("hung\n")
    assert told.get(timeout=60) is True
    state.mkdir()
    assert told.get(timeout=60) is False
    watch.stop()


def test_in_a_container_the_root_is_asked_without_a_doubt_of_the_node(tmp_path: Path, marks: Path) -> None:
    """The node has mounted it anew and is content; the container that runs keeps the dead mount."""
    state, told = tmp_path / "state", queue.Queue[bool]()
    watch = RootWatch(str(state), told.put, marks=str(marks), check_interval=0.01, inside=True)
    assert told.get(timeout=60) is True
    state.mkdir()
    assert told.get(timeout=60) is False
    watch.stop()


def test_a_rank_that_could_not_save_has_the_root_asked_at_once(tmp_path: Path, marks: Path) -> None:
    state, told, failed = tmp_path / "state", queue.Queue[bool](), [0]
    watch = RootWatch(str(state), told.put, marks=str(marks), check_interval=3600.0, failed=lambda: failed[0])
    failed[0] = 1
    assert told.get(timeout=60) is True
    state.mkdir()
    failed[0] = 2
    assert told.get(timeout=60) is False, "another save has failed, and the root answers again"
    watch.stop()


def test_of_the_looks_in_a_container_few_write(tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "state"
    root.mkdir()
    before = root.stat().st_mtime_ns
    asked: List[bool] = []

    class Counted(Probe):
        def answers(self, *, write: bool = True) -> bool:
            asked.append(write)
            return super().answers(write=write)

    monkeypatch.setattr(storage, "Probe", Counted)
    watch = RootWatch(str(root), lambda away: None, marks=str(marks), check_interval=0.01, inside=True)
    until(lambda: len(asked) >= 4 * LOOKS_INSIDE, what="looks")
    watch.stop()
    assert abs(asked.count(True) * LOOKS_INSIDE - len(asked)) <= LOOKS_INSIDE, asked
    assert root.stat().st_mtime_ns > before, "those that write have written"
