"""`job sweep`, which a timer starts on the controller: requeues jobs that nobody else puts back into the queue.

Such a job is one that Slurm keeps RUNNING although its batch script is gone, or one whose `job run` has left a host
that alone had lost the checkpoint root (batch_host_watch.py).

With --no-kill a job survives the loss of a node; when that node was the batch host, Slurm removes it from the job, the
script is gone, and nothing ever ends the job (observed with 22.05; the same code is in 26.11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, records
from hyperpod_kit.slurm.environment import AWAY_MARK
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId

WITHOUT_HOST = "runs without its batch host"


@dataclass(frozen=True)
class Orphan:
    """A job that nobody else puts back into the queue.

    job_id: a plain number or an array's task (`11_2`); host: its batch host; requeue: whether Slurm may put it back
    into the queue; reason: the verb of a sentence between the job and its host (it `runs without its batch host`, or it
    left the host); comment: what its comment is to be afterwards, None: as it is; owner: the number of its user.
    """

    job_id: str
    host: str
    requeue: bool
    reason: str = WITHOUT_HOST
    comment: Optional[str] = None
    owner: str = ""


def orphans(jobs: Sequence[Mapping[str, str]]) -> Tuple[List[Orphan], List[str]]:
    """Return the orphans among records of jobs, and a line about each record that could not be judged.

    A record that cannot be judged does not keep the others from being swept.
    """
    orphan_jobs: List[Orphan] = []
    problems: List[str] = []
    for job in jobs:
        try:
            orphan = _orphan(job)
        except ValueError as err:
            problems.append(f"job {job.get('JobId')}: {err}")
            continue
        if orphan:
            orphan_jobs.append(orphan)
    return orphan_jobs, problems


def _orphan(job: Mapping[str, str]) -> Optional[Orphan]:
    if job.get("HetJobOffset", "0") != "0":
        return None  # the script belongs to the leader of the heterogeneous job, so it alone is swept
    host, nodes, comment = job.get("BatchHost", ""), job.get("NodeList", ""), job.get("Comment", "")
    state, requeue, owner = job.get("JobState"), job.get("Requeue") == "1", job.get("UserId", "")
    if state == "FAILED" and AWAY_MARK in comment:
        return Orphan(
            JobId.from_record(job).slurm_id,
            host,
            requeue,
            "left a host without the checkpoint root,",
            comment.replace(AWAY_MARK, "").strip(),
            owner,
        )
    if state == "RUNNING" and job.get("BatchFlag") != "0" and host and nodes and host not in expand(nodes):
        return Orphan(JobId.from_record(job).slurm_id, host, requeue, owner=owner)
    return None


def sweep(runner: Runner, orphan_jobs: Sequence[Orphan]) -> List[Tuple[Orphan, str]]:
    """Put the orphans back into the queue; returns each with what was wrong, "" when it is done."""
    done: List[Tuple[Orphan, str]] = []
    for orphan in orphan_jobs:
        if not orphan.requeue:
            done.append((orphan, f"it was submitted with --no-requeue: scancel {orphan.job_id}, and submit it again"))
            continue
        owner = ""
        if orphan.owner:
            owner = f"uid {orphan.owner}"
        try:
            control.requeue(runner, JobId.parse(orphan.job_id))
            audit.record_root_action_in_journal(
                "requeued",
                f"job {orphan.job_id}",
                f"it {orphan.reason} {orphan.host}",
                asked_by="job sweep",
                owner=owner,
            )
            if orphan.comment is not None:
                control.set_comment(runner, JobId.parse(orphan.job_id), orphan.comment)
            done.append((orphan, ""))
        except RunError as err:
            done.append((orphan, err.message))
    return done


def jobs(runner: Runner) -> List[Mapping[str, str]]:
    """Return the records of all jobs that slurmctld knows. Raises RunError."""
    return list(records.query_squeue(runner))
