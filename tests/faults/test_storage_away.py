"""A checkpoint root that is away for everybody: nobody is to blame, so it costs nothing but time."""

from __future__ import annotations

import time
from typing import Callable, cast

import pytest

from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.site import Site

Row = Callable[..., None]
OUTAGE = 120.0


def test_storage_fails_for_a_while(job: Job, row: Row) -> None:
    """Saves fail at once: the ranks end, and `job run` waits."""
    job.submit("--steps", "60").running()
    fault = job.broken(job.checkpoint_root.away)
    time.sleep(15)
    job.checkpoint_root.back()
    back = time.time()
    seconds = job.resumed(fault) - (back - fault.at)
    job.ended_well(60)
    assert job.classes == ["storage", "done"] and job.show()["Restarts"] == "0"
    row(
        "the checkpoint root is away for 15 s", "waits, goes on, no budget burnt", round(seconds, 1), "after it is back"
    )


@pytest.mark.machines
def test_storage_hangs_for_two_minutes(job: Job, site: Site, row: Row) -> None:
    machines = cast(MachineSite, site)
    job.submit("--steps", "100", "--pause", "0.1", options="--stall 20").running()
    for node in machines.nodes:
        machines.break_mount(node, "hang-daemon")
    time.sleep(OUTAGE)
    steps = len(job.progress())
    for node in machines.nodes:
        machines.break_mount(node, "hang-daemon", undo=True)
    back = time.time()
    job._wait("a step after it", lambda: len(job.progress()) > steps, 60)
    seconds = job.progress()[steps]["t"] - back
    job.ended_well(100, timeout=150)
    assert not {"crash", "stall"} & set(job.classes)
    row(
        "all storage hangs for 2 minutes",
        "waits, goes on, no budget burnt",
        round(max(0.0, seconds), 1),
        "after it is back",
    )
