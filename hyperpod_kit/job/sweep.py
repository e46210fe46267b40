"""`job sweep`, on the controller by a timer: jobs that Slurm keeps RUNNING although their batch script is gone.

With --no-kill a job survives the loss of a node; when that node was the batch host, Slurm removes it from the job, the
script is gone, and nothing ever ends the job (observed with 22.05; the same code is in 26.11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.hostlist import expand


@dataclass(frozen=True)
class Orphan:
    """A job without its batch host. `requeue`: Slurm may put it back into the queue."""

    job_id: str
    host: str
    requeue: bool


def orphans(jobs: List[Mapping[str, str]]) -> List[Orphan]:
    """Those among records of `scontrol show job` that run without the host of their script."""
    found = []
    for job in jobs:
        host, nodes = job.get("BatchHost", ""), job.get("NodeList", "")
        if job.get("JobState") != "RUNNING" or job.get("BatchFlag") == "0" or not host or nodes in ("", "(null)"):
            continue
        if host not in expand(nodes):
            task = job.get("ArrayTaskId", "")
            # The plain id of an array's task may mean the whole array.
            name = f"{job['ArrayJobId']}_{task}" if task.isdigit() and "ArrayJobId" in job else job["JobId"]
            found.append(Orphan(name, host, job.get("Requeue") == "1"))
    return found


def sweep(runner: Runner, found: Sequence[Orphan]) -> List[Tuple[Orphan, str]]:
    """Put the orphans back into the queue; each with what was wrong, "" when it is done."""
    done: List[Tuple[Orphan, str]] = []
    for one in found:
        if not one.requeue:
            done.append((one, f"it was submitted with --no-requeue: scancel {one.job_id}, and submit it again"))
            continue
        try:
            control.requeue(runner, one.job_id)
            done.append((one, ""))
        except RunError as err:
            done.append((one, err.message))
    return done


def jobs(runner: Runner) -> List[Mapping[str, str]]:
    """All jobs that slurmctld knows. Raises RunError."""
    done = runner.run(["scontrol", "-o", "show", "job"], timeout=control.DEADLINE)
    return [record for record in map(control.parse_record, done.stdout.splitlines()) if "JobId" in record]
