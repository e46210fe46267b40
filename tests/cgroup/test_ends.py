"""Each way in which Slurm ends a step whose processes it tracks by cgroup: agents die with it, captures do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cgroup.ends import ENDS, kill_all
from tests.cgroup.site import SavingJob, Site
from tests.support.wait import until

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm", "cgroup-v1", "system-python")]

MB = 48
"""Of each rank: a save takes more than two seconds of the disk, so that two lie in memory at any moment."""


def agents_alive(job: SavingJob) -> bool:
    return any(
        Path(f"/proc/{one['agent']}").exists()
        for rank in range(job.ranks)
        for one in job.events(rank)
        if "agent" in one
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "state",
    # A time limit comes after a minute at the soonest.
    [pytest.param(state, marks=pytest.mark.full) if state == "TIMEOUT" else state for state in ENDS],
)
def test_what_all_ranks_have_captured_reaches_storage_however_the_step_ends(site: Site, state: str) -> None:
    job = SavingJob(site, mb=MB, options="--mem=1000")
    job.at_capture(4)
    # However long the end takes, it leaves something: two slots are written in half a minute so.
    with site.disk.slower(3 << 20):
        ENDS[state](job)
        assert job.ended() in ((state,) if state != "OUT_OF_MEMORY" else (state, "FAILED")), job.told()
        until(lambda: not agents_alive(job), what="the end of all that the step had started")
        captured = job.captured()
        assert set(captured) - set(job.committed()), "nothing was left for the Epilog: this shows nothing"
    until(lambda: not site.left_in_memory(), 180, what="freed memory")
    assert set(captured) <= set(job.durable()), (captured, job.durable(), job.told())
    until(lambda: not list((job.root / "flushes").iterdir()), what="no note")


@pytest.mark.full
def test_captures_are_charged_to_the_step_and_then_to_the_job(site: Site) -> None:
    """What docs/checkpoints.md says of `--mem`."""
    node = site.slurm.nodes[0]
    job = SavingJob(site, mb=MB, options="--mem=1000", then="sleep 600")
    job.at_capture(3)
    groups = site.slurm.groups("memory", node)
    [step] = [path for path in groups if path.name == "step_0"]
    [whole] = [path for path in groups if path.name == f"job_{job.id}"]
    assert charged(step) >= 2 * MB << 20, "both slots"
    kill_all(job)
    until(lambda: not step.exists(), what="the end of the step")
    assert charged(whole) >= 2 * MB << 20, "still the job's, and its next step has so much less"
    site.slurm.call("scancel", job.id, as_user=True)
    job.ended()
    until(lambda: not site.left_in_memory(), 180, what="freed memory")


def charged(group: Path) -> int:
    """Bytes of shared memory that count for a group and those in it."""
    lines = (group / "memory.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["total_shmem"])
