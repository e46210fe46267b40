"""`job sweep`, on the controller by a timer: jobs that nobody else puts back into the queue.

One that Slurm keeps RUNNING although its batch script is gone, and one whose `job run` has left a host that alone had
lost the checkpoint root (own_node.py).

With --no-kill a job survives the loss of a node; when that node was the batch host, Slurm removes it from the job, the
script is gone, and nothing ever ends the job (observed with 22.05; the same code is in 26.11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import AWAY_MARK
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId


@dataclass(frozen=True)
class Orphan:
    """A job that `why` (runs without its batch host, left it). `requeue`: Slurm may put it back into the queue.

    job_id: a plain number or an array's task (`11_2`); comment: what its comment is to be afterwards, None: as it is.
    """

    job_id: str
    host: str
    requeue: bool
    why: str = "runs without its batch host"
    comment: Optional[str] = None


def orphans(jobs: List[Mapping[str, str]]) -> List[Orphan]:
    """Those among records of `scontrol show job` that run without the host of their script, or have left it."""
    found = []
    for job in jobs:
        host, nodes = job.get("BatchHost", ""), job.get("NodeList", "")
        comment = job.get("Comment", "")
        if job.get("HetJobOffset", "0") != "0":
            continue  # the script is its leader's, and so is everything that is done with the job
        if AWAY_MARK in comment and job.get("JobState") == "FAILED":
            found.append(Orphan(JobId.of(job).name, host, job.get("Requeue") == "1",
                                "left a host without the checkpoint root,", comment.replace(AWAY_MARK, "").strip()))
        if job.get("JobState") != "RUNNING" or job.get("BatchFlag") == "0" or not host or nodes in ("", "(null)"):
            continue
        if host not in expand(nodes):
            found.append(Orphan(JobId.of(job).name, host, job.get("Requeue") == "1"))
    return found


def sweep(runner: Runner, found: Sequence[Orphan]) -> List[Tuple[Orphan, str]]:
    """Put the orphans back into the queue; each with what was wrong, "" when it is done."""
    done: List[Tuple[Orphan, str]] = []
    for one in found:
        if not one.requeue:
            done.append((one, f"it was submitted with --no-requeue: scancel {one.job_id}, and submit it again"))
            continue
        try:
            control.requeue(runner, JobId.parse(one.job_id))
            if one.comment is not None:
                control.set_comment(runner, JobId.parse(one.job_id), one.comment)
            done.append((one, ""))
        except RunError as err:
            done.append((one, err.message))
    return done


def jobs(runner: Runner) -> List[Mapping[str, str]]:
    """All jobs that slurmctld knows. Raises RunError."""
    return list(control.records(runner))
