"""A hung job that is cancelled, on a real Slurm of our own: it comes back where its user has asked for that, and where
the user that it named has cancelled it."""

from __future__ import annotations

import time
from typing import Iterator

import pytest

from tests.support.wait import scaled, until
from tests.unit.job.private_slurm import PrivateSlurm, running
from tests.unit.job.test_real_slurm import MAIN, PYTHON, Work

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

SILENT = 15.0
"""Seconds of an idle machine, beyond the ten after which a step looks hung."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(more="KillWait=30\n") as cluster:
        yield cluster


@pytest.fixture
def work(slurm: PrivateSlurm) -> Work:
    return Work(slurm)


def hung(work: Work) -> Work:
    """A job whose last rank hangs at step 8 of its first attempt."""
    trainer = ["--steps", "12", "--hang", "8", "--once", str(work.place / "once")]
    work.submit(*trainer, run="--stall never --requeue-after-cancel root")
    until(work.checkpoints, what="checkpoint")
    mark = work.place / "once"
    until(mark.exists, what="the last rank's hang")
    silent = scaled(SILENT)
    until(lambda: time.time() - mark.stat().st_mtime > silent, timeout=60.0 + silent, what="a hang of some seconds")
    return work


def sweep(work: Work) -> str:
    return work.slurm.call(PYTHON, "-I", "-S", str(MAIN), "sweep", check=False)


def cancelled(work: Work, code: str) -> None:
    work.state("CANCELLED")
    assert work.detail("ExitCode") == code, (work.place / "out").read_text()


def test_a_hung_job_that_root_cancels_comes_back_with_the_sweep(work: Work) -> None:
    hung(work).slurm.call("scancel", work.id)
    cancelled(work, "85:0")
    assert f"job {work.id} was cancelled by uid 0 while its ranks hung" in sweep(work)
    work.state("COMPLETED")
    first, second = work.events("ended")
    assert (first["class"], second["class"]) == ("cancelled_in_hang", "done") and "no step for" in first["hang"]
    assert work.events("attempt")[1]["from"].startswith("seq-") and work.detail("Restarts") == "1"
    assert sweep(work) == ""


@pytest.mark.full
def test_a_hung_job_that_its_user_cancels_has_ended(work: Work) -> None:
    hung(work).slurm.call("scancel", work.id, as_user=True)
    cancelled(work, "85:0")
    assert sweep(work) == "" and work.slurm.state(work.id) == "CANCELLED"


def test_a_job_at_work_that_root_cancels_has_ended(work: Work) -> None:
    work.submit("--steps", "5000", run="--requeue-after-cancel root")
    until(work.checkpoints, what="checkpoint")
    work.slurm.call("scancel", work.id)
    cancelled(work, "143:0")
    assert work.events("ended")[0]["class"] == "cancelled"
    assert sweep(work) == "" and work.slurm.state(work.id) == "CANCELLED"
