"""Two jobs on one checkpoint root: one has it, the other gets one clear error and writes nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.errors import GaveUp, RunIsOwned, Unreachable
from hyperpod_kit.job.run import ownership
from hyperpod_kit.slurm.job_id import JobId
from tests.support.runner import RecordingRunner
from tests.unit.job.conftest import Job


def claim(state: Path, job: str, others: str = "", limit: float = 0.0) -> None:
    """Claim for `job`; `others` is Slurm's word for every other job, or what scontrol says on standard error."""
    failed = others.startswith("slurm")
    runner = RecordingRunner(
        {f"squeue job {number}": (1, others) if failed else f"JobId={number} JobState={others}" for number in range(10)}
    )
    ownership.claim(runner, str(state), JobId.parse(job), lambda seconds: None, limit=limit)


def claims(state: Path) -> List[str]:
    return [json.loads(path.read_text())["job"] for path in sorted(state.glob("owner-*.json"))]


@pytest.mark.parametrize("word", ["RUNNING", "PENDING", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
def test_a_job_that_has_not_ended_keeps_its_root(tmp_path: Path, word: str) -> None:
    claim(tmp_path, "7")
    claim(tmp_path, "7", word)  # again after a requeue
    with pytest.raises(RunIsOwned, match=f"is used by job 7, which is {word}"):
        claim(tmp_path, "8", word)
    assert claims(tmp_path) == ["7"]


@pytest.mark.parametrize(
    "word", ["COMPLETED", "CANCELLED", "FAILED", "slurm_load_jobs error: Invalid job id specified"]
)
def test_an_ended_or_forgotten_job_leaves_it(tmp_path: Path, word: str) -> None:
    claim(tmp_path, "7")
    claim(tmp_path, "8", word)
    assert claims(tmp_path) == ["7", "8"]


def test_what_slurm_does_not_say_is_no_permission(tmp_path: Path) -> None:
    claim(tmp_path, "7")
    with pytest.raises(Unreachable, match="reports no state of that job"):
        claim(tmp_path, "8", "slurm_load_jobs error: Unable to contact slurm controller")
    assert claims(tmp_path) == ["7"]


def test_a_job_that_is_completing_is_waited_for(tmp_path: Path) -> None:
    claim(tmp_path, "7")
    runner = RecordingRunner({"squeue job": "JobId=7 JobState=COMPLETING"})
    ownership.claim(
        runner,
        str(tmp_path),
        JobId("8"),
        lambda seconds: runner.answers.update({"squeue job": "JobId=7 JobState=COMPLETED"}),
        limit=5,
    )
    assert claims(tmp_path) == ["7", "8"]


def test_two_tasks_of_one_array_are_both_named(tmp_path: Path) -> None:
    state = tmp_path / "run" / ".hpk"
    state.mkdir(parents=True)
    claim(state, "11_2")
    runner = RecordingRunner({"squeue job 11_2": "JobId=13 ArrayJobId=11 ArrayTaskId=2 JobState=RUNNING"})
    with pytest.raises(RunIsOwned, match="used by job 11_2, which is RUNNING, and job 11_5 is another task") as caught:
        ownership.claim(runner, str(state), JobId("11", "11", "5"), lambda seconds: None, limit=0.0)
    assert caught.value.hint == f"--checkpoint-root {tmp_path}/run-$SLURM_ARRAY_TASK_ID"
    assert claims(state) == ["11_2"]


def test_a_torn_claim_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_WRITING", 0.0)
    (tmp_path / "owner-000004.json").write_text('{"jo')
    claim(tmp_path, "8")
    assert (tmp_path / "owner-000005.json").exists()


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    won: List[str] = []
    lost: List[str] = []
    gate = threading.Barrier(8)

    def start(job: str) -> None:
        gate.wait(10)
        try:
            claim(tmp_path, job, "RUNNING")
            won.append(job)
        except RunIsOwned:
            lost.append(job)

    threads = [threading.Thread(target=start, args=(str(job),)) for job in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(won) == 1 and len(lost) == 7 and claims(tmp_path) == won


def test_the_second_job_writes_nothing(job_in_process: Job) -> None:
    job = job_in_process
    assert job.run("--steps", "6") == 0
    before = sorted(path.name for path in job.root.rglob("*"))
    job.environment["SLURM_JOB_ID"] = "8"
    with pytest.raises(RunIsOwned, match="is used by job 7, which is RUNNING"):
        job.run("--steps", "9")
    with pytest.raises(GaveUp, match="is used by job 7"):  # it was there before, lost it, and is held
        job.run("--steps", "9", restart=1)
    assert sorted(path.name for path in job.root.rglob("*")) == before
    assert len(job.said("attempt")) == 1
