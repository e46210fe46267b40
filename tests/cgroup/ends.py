"""The ways in which Slurm ends a step, by the state in which its job is then."""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict

from tests.cgroup.site import SavingJob


def kill_all(job: SavingJob) -> None:
    for pid in job.pids():
        os.kill(pid, signal.SIGKILL)


def cancel_twice(job: SavingJob) -> None:
    for _ in range(2):
        job.site.slurm.call("scancel", job.id, as_user=True)


def over_time(job: SavingJob) -> None:
    """Its limit is in seconds: slurmctld refuses one that has passed when it hears of it."""
    job.site.slurm.call("scontrol", "update", f"JobId={job.id}", "EndTime=now+5seconds")


def over_memory(job: SavingJob) -> None:
    """Rank 0 takes more than it may."""
    os.kill(job.pids()[0], signal.SIGUSR2)


ENDS: Dict[str, Callable[[SavingJob], None]] = {
    "FAILED": kill_all,
    "CANCELLED": cancel_twice,
    "TIMEOUT": over_time,
    "OUT_OF_MEMORY": over_memory,
}
