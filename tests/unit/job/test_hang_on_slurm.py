"""A job that hangs, and one that is suspended, on a real Slurm of our own: `job run` learns of steps on other nodes."""

from __future__ import annotations

import time
from typing import Iterator

import pytest

from hyperpod_kit.job.status import timeline
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running
from tests.unit.job.test_real_slurm import MAIN, Work

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

SUSPENDED = 12.0
"""Seconds, well beyond the limit of 5."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running() as cluster:
        yield cluster


@pytest.fixture
def work(slurm: PrivateSlurm) -> Work:
    return Work(slurm)


def reached(work: Work, step: int) -> bool:
    found = timeline.attempts(str(work.root)) if work.root.exists() else []
    return bool(found) and (found[-1].reached or 0) >= step


@pytest.mark.full
def test_a_hang_on_another_node_is_found_and_the_job_goes_on(work: Work) -> None:
    trainer = ["--steps", "14", "--hang", "10", "--print", "--pause", "0.2", "--once", str(work.place / "once")]
    work.submit(*trainer, run="--stall auto:10:3")
    work.state("COMPLETED")
    assert [event["class"] for event in work.events("ended")] == ["stall", "done"]
    [intervened] = work.events("intervene")
    (behind, node, step, phase), (ahead, *_) = intervened["ranks"]
    assert (behind, ahead, step, phase) == (1, 0, 9, "step") and f"rank 1 on {node} at step 9" in intervened["message"]
    assert node in work.events("attempt")[0]["nodes"][1:], "not the batch host"
    assert work.events("ended")[0]["reached"] == 10 and work.detail("Restarts") == "0"


def test_a_running_attempt_shows_its_step(work: Work) -> None:
    work.submit("--steps", "5000", "--pause", "0.2")
    until(lambda: reached(work, 1), what="note of a step")
    shown = work.slurm.call("/usr/bin/python3", "-I", "-S", str(MAIN), "status", "--root", str(work.root))
    assert " running" in shown and " ago " in shown
    work.slurm.call("scancel", work.id, as_user=True)
    work.state("CANCELLED")


def test_a_job_that_is_suspended_does_not_hang(work: Work) -> None:
    work.submit("--steps", "120", "--pause", "0.2", run="--stall 5")
    # Not the note of the steps, which is written seldom: most of the job is to come when it is suspended.
    until(lambda: work.root.exists() and any(work.root.glob("seq-*/MANIFEST.json")), what="first checkpoint")
    work.slurm.call("scontrol", "suspend", work.id)
    work.state("SUSPENDED")
    time.sleep(SUSPENDED)  # nothing happens that could be waited for
    work.slurm.call("scontrol", "resume", work.id)
    work.state("COMPLETED")
    assert [event["class"] for event in work.events("ended")] == ["done"] and not work.events("intervene")
