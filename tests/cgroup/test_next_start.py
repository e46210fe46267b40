"""The start after a step that ended under cgroup tracking: it goes on from what was captured last, wherever that is."""

from __future__ import annotations

import re
from typing import Any, Dict, List

import pytest

from tests.cgroup.ends import kill_all
from tests.cgroup.site import SavingJob, Site
from tests.support.wait import until

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm", "cgroup-v1", "system-python")]

MB, MORE = 96, 250
"""Of each rank; at 40 MB a second for both the second takes longer than Slurm needs to start a job again."""
RUN = "--flush-wait 300"
SBATCH = "--mem=1200 --auto-resume=1"


def second(job: SavingJob) -> Dict[str, Any]:
    """What rank 0 says at its second start."""
    try:
        until(lambda: len(job.starts()) > 1, 180, what="a second start")
    except AssertionError as err:
        raise AssertionError(f"{err}\n{job.told()}") from None
    return job.starts()[1]


def over(job: SavingJob) -> None:
    job.site.slurm.call("scancel", job.id, as_user=True)
    job.ended()
    until(lambda: not job.site.left_in_memory(), 180, what="freed memory")


@pytest.mark.full
def test_a_crash_is_retried_from_the_memory_that_the_dead_agents_left(site: Site) -> None:
    job = SavingJob(site, mb=MB, options=SBATCH, run=RUN)
    job.at_capture(4)
    kill_all(job)
    start = second(job)
    assert start["restored"] >= 3 and start["tier"] == "memory", (start, job.told())
    assert not job.reported("flush"), "nobody else is at it"
    over(job)
    # Of what lay in memory the new start keeps what it goes on from; its agents have brought that to storage.
    assert {step for step in job.captured() if step >= start["restored"]} <= set(job.durable())


@pytest.mark.full
@pytest.mark.parametrize("where", ["the same nodes", "others"])
def test_a_run_that_slurm_puts_back_waits_for_what_its_nodes_still_save(site: Site, where: str) -> None:
    job = SavingJob(site, mb=MORE, options=SBATCH, run=RUN)
    job.at_capture(2)
    first = job.site.slurm.call("squeue", "-h", "-j", job.id, "-o", "%N").strip()
    site.slurm.call("scontrol", "requeue", job.id, as_user=True)
    until(lambda: site.slurm.state(job.id) == "PENDING", what="a requeue")
    held: List[int] = job.captured()
    if where == "others":
        site.slurm.call("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={first}")
    start = second(job)
    said = [one["message"] for one in job.reported("flush")]
    assert start["restored"] == max(held), (start, held, said, job.told())
    assert said and "to storage" in said[0], job.told()
    waits = re.search(r"waiting up to (\d+) s more", said[0])
    # Of the 300 seconds some are over where the machine is busy.
    assert waits is not None and 200 < int(waits[1]) <= 300, job.told()
    now = job.site.slurm.call("squeue", "-h", "-j", job.id, "-o", "%N").strip()
    assert (now == first) is (where == "the same nodes")
    over(job)
    assert set(held) | set(job.captured()) <= set(job.durable())
