"""A finished job that Slurm queues once more because it was warned of a preemption before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.job.run import beginning
from hyperpod_kit.job.status import timeline
from tests.support.rows import full
from tests.unit.job.conftest import Job

Row = Dict[str, Any]


def end(kind: str, restart: int, **more: Any) -> Row:
    return {"event": "ended", "class": kind, "restart": restart, "t": 1000.0, "attempt": f"7.{restart}.0", **more}


START: Row = {"event": "attempt", "restart": 0, "attempt": "7.0.0"}


@pytest.mark.parametrize(
    ("rows", "restart", "found"),
    [
        ([START, end("again", 0), end("done", 1)], 2, True),
        ([START, end("preempted", 0), end("crash", 1), end("done", 1)], 2, True),
        ([START, end("done", 0, warned=True)], 1, True),
        ([START, end("done", 0)], 1, False),  # never warned: whoever queued it wants it to run
        ([START, end("again", 0), end("done", 1)], 3, False),  # a run between has found nothing to do
        ([START, end("again", 0), end("done", 1), end("done", 2)], 3, False),  # one mark, one run too many
        ([START, end("again", 0), end("crash", 1)], 2, False),
        ([START, end("done", 0), end("again", 1)], 2, False),
        ([START], 1, False),
    ],
)
def test_a_run_is_one_too_many_behind_a_run_that_finished_a_warned_job(
    rows: List[Row], restart: int, found: bool
) -> None:
    last = beginning.end_of_previous_run_finished_after_warning(rows, restart)
    assert (last is not None) is found
    assert last is None or last is rows[-1]


@pytest.mark.parametrize(
    ("queued", "by_slurm"),
    [(1001.0, True), (1050.0, True), (999.0, True), (1000.0 + beginning.WITHIN + 1, False), (0.0, False)],
)
def test_slurm_queues_it_at_once_and_a_person_later(queued: float, by_slurm: bool) -> None:
    assert beginning.is_requeued_within_minute_of_end(end("done", 1), queued) is by_slurm


def stamp(seconds_from_now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S\n", time.localtime(time.time() + seconds_from_now))


@pytest.fixture
def finished(job_in_process: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Preempted in run 0, finished in run 1."""
    job = job_in_process
    monkeypatch.setattr("hyperpod_kit.job.run.supervisor.REQUEUE_WAIT", 0.2)
    assert job.run(command=["/bin/sh", "-c", "exit 75"]) == 75
    assert job.run("--steps", "7", restart=1) == 0
    return job


QUEUED = "squeue --local --all --noheader --states=all -j 7 -o %V"


def test_what_slurm_queued_once_more_ends_well_and_starts_no_rank(finished: Job) -> None:
    job = finished
    job.runner.answers[QUEUED] = stamp(2)
    attempts = len(job.said("attempt"))
    assert job.run("--steps", "9", restart=2) == 0
    assert len(job.said("attempt")) == attempts
    [said] = job.said("finished_before")
    assert "7.1.0" in said["message"] and said["message"].endswith("to train on: scontrol requeue 7")
    assert timeline.attempts(str(job.root))[-1].then.startswith("stopped: nothing to do")
    # Whoever reads that and wants more has it.
    assert job.run("--steps", "9", restart=3) == 0
    assert len(job.said("attempt")) == attempts + 1 and job.said("attempt")[-1]["step"] == 5


@pytest.mark.parametrize("answer", ["later", *full("", "Unknown\n"), (1, "slurm_load_jobs error")])
def test_who_queues_a_finished_job_later_trains_on(finished: Job, answer: Any) -> None:
    finished.runner.answers[QUEUED] = stamp(beginning.WITHIN + 30) if answer == "later" else answer
    attempts = len(finished.said("attempt"))
    assert finished.run("--steps", "9", restart=2) == 0
    assert len(finished.said("attempt")) == attempts + 1 and not finished.said("finished_before")


def test_a_run_that_finishes_after_the_warning_is_told_so(job: Job, tmp_path: Path) -> None:
    """The warning comes while the last steps are made: the mark is there, and nothing was handed back."""
    import signal

    thread = job.later(signal.SIGUSR1, lambda: list(job.root.glob("seq-*")))
    assert job.run("--steps", "60") == 0
    thread.join()
    [row] = [one for one in job.said("ended")]
    assert row["class"] == "done"
    job.runner.answers[QUEUED] = stamp(1)
    assert job.run("--steps", "70", restart=1) == 0
    assert len(job.said("attempt")) == 1 and job.said("finished_before")
