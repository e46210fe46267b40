"""Faults of ranks: they end, they are killed, they hang, Slurm loses sight of them."""

from __future__ import annotations

import signal
from typing import Callable

import pytest

from tests.faults.job import Job
from tests.faults.profiles import IN_S3
from tests.support.wait import scaled

Row = Callable[..., None]
STEPS = 60
AT_MOST = 10 if IN_S3 else 3
"""Seconds of a machine of the usual speed, beside the start-up: in S3 each look at the root is a request."""


def at_work(job: Job, *trainer: str, options: str = "") -> Job:
    return job.submit("--steps", str(STEPS), *trainer, options=options).running()


def lost_and_retried(job: Job, *who: str, rank: int = 1) -> float:
    """SIGKILL to what Slurm itself does not miss; seconds to the first step of the next attempt."""
    at_work(job)
    seconds = job.resumed(job.send(signal.SIGKILL, *who, rank=rank))
    job.ended_well(STEPS)
    assert job.show()["Restarts"] == "0" and seconds < scaled(30)
    return seconds


@pytest.mark.quick
def test_a_rank_exits_1(job: Job, row: Row) -> None:
    at_work(job)
    seconds = job.resumed(job.send(signal.SIGUSR2))
    job.ended_well(STEPS)
    assert job.classes == ["crash", "done"] and job.rows("ended")[0]["first"]["code"] == 1
    assert job.show()["Restarts"] == "0" and seconds < scaled(AT_MOST) + job.start_up()
    row("a rank exits 1", "retried in the allocation", seconds, f"start-up {job.start_up()}")


@pytest.mark.quick
def test_a_rank_is_killed(job: Job, row: Row) -> None:
    at_work(job)
    seconds = job.resumed(job.send(signal.SIGKILL))
    job.ended_well(STEPS)
    assert job.classes == ["crash", "done"] and job.rows("ended")[0]["first"]["signal"] == 9
    assert job.show()["Restarts"] == "0" and seconds < scaled(AT_MOST) + job.start_up()
    row("a rank is SIGKILLed", "retried in the allocation", seconds, f"start-up {job.start_up()}")


def test_a_rank_hangs(job: Job, row: Row) -> None:
    at_work(job, options="--stall 5")
    seconds = job.resumed(job.send(signal.SIGSTOP))
    job.ended_well(STEPS)
    assert job.classes == ["stall", "done"] and job.show()["Restarts"] == "0"
    row("a rank hangs (SIGSTOP), `--stall 5`", "ended and retried in the allocation", seconds)


@pytest.mark.quick
def test_slurmstepd_is_killed(job: Job, row: Row) -> None:
    seconds = lost_and_retried(job, "step")
    row("slurmstepd is killed, slurmd lives", "noticed, retried in the allocation", seconds)


def test_srun_is_killed(job: Job, row: Row) -> None:
    seconds = lost_and_retried(job, "srun", rank=0)
    row("srun is killed", "what is left of its step is ended, retried in the allocation", seconds)


def test_slurmstepd_of_the_batch_hosts_rank_is_killed(job: Job, row: Row) -> None:
    seconds = lost_and_retried(job, "step", rank=0)
    row("slurmstepd of rank 0 is killed, beside `job run`", "noticed, retried in the allocation", seconds)


def test_slurmstepd_and_its_rank_are_killed(job: Job, row: Row) -> None:
    seconds = lost_and_retried(job, "step", "wrapper", "rank")
    row("slurmstepd and its rank are killed, slurmd lives", "noticed, retried in the allocation", seconds)
