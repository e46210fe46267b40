"""Slurm's records of jobs, read so that no free text of a job gets into another field or another job's record.

`scontrol show job` prints a job's name, comment and paths unquoted among the fields and line feeds as they are: whoever
names a job writes into it. squeue prints the fields that it is asked for, with what it is told to put behind each: here
a word of 128 random bits that is made for each question. It is handed over in the environment, because a command line
can be read by every user while squeue runs, and a comment changed in that time. 22.05 and 24.11 do the same.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Optional, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner

DEADLINE = 20.0
"""Seconds any Slurm command may take: a busy slurmctld answers late, a dead one never."""

FIELDS: Tuple[Tuple[str, str], ...] = (
    ("JobId", "JobID"),
    ("ArrayJobId", "ArrayJobID"),
    ("ArrayTaskId", "ArrayTaskID"),
    ("HetJobId", "HetJobID"),
    ("HetJobOffset", "HetJobOffset"),
    ("UserId", "UserID"),
    ("GroupId", "GroupID"),
    ("JobState", "State"),
    ("Reason", "Reason"),
    ("Requeue", "Requeue"),
    ("Restarts", "RestartCnt"),
    ("BatchFlag", "BatchFlag"),
    ("BatchHost", "BatchHost"),
    ("NodeList", "NodeList"),
    ("Comment", "Comment"),
)
"""What `scontrol show job` calls a field, which is what it is called here, and what squeue does."""

TIME_FIELDS: Tuple[Tuple[str, str], ...] = (
    ("JobId", "JobID"),
    ("ArrayJobId", "ArrayJobID"),
    ("ArrayTaskId", "ArrayTaskID"),
    ("HetJobId", "HetJobID"),
    ("HetJobOffset", "HetJobOffset"),
    ("JobState", "State"),
    ("Restarts", "RestartCnt"),
    ("User", "UserName"),
    ("Partition", "Partition"),
    ("SubmitTime", "SubmitTime"),
    ("StartTime", "StartTime"),
    ("EndTime", "EndTime"),
    ("AllocTRES", "tres-alloc"),
)
"""What says how a job's time passed, and what it holds; as FIELDS."""

UNSET: Mapping[str, Optional[str]] = dict.fromkeys(
    (
        "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT",
        "SQUEUE_ACCOUNT",
        "SQUEUE_ALL",
        "SQUEUE_ARRAY",
        "SQUEUE_FEDERATION",
        "SQUEUE_FORMAT",
        "SQUEUE_FORMAT2",
        "SQUEUE_LICENSES",
        "SQUEUE_LOCAL",
        "SQUEUE_NAMES",
        "SQUEUE_PARTITION",
        "SQUEUE_PRIORITY",
        "SQUEUE_QOS",
        "SQUEUE_SIBLING",
        "SQUEUE_SORT",
        "SQUEUE_STATES",
        "SQUEUE_USERS",
    )
)
"""What a person sets to see less of the queue would hide a job that lives, and make it look like one that has ended."""

UNIX_TIMES: Mapping[str, Optional[str]] = {"SLURM_TIME_FORMAT": "%s"}
"""Seconds since 1970: what a clock shows comes twice in the night in which summer ends."""

_NAME = re.compile(r"[0-9]+(?:_[0-9]+)?")
_NOTHING = ("(null)", "N/A", "n/a", "")


class UnknownJob(RunError):
    """slurmctld answers, and knows no such job (any more)."""


def query_squeue(
    runner: Runner, job_id: str = "", *, squeue: str = "squeue", fields: Tuple[Tuple[str, str], ...] = FIELDS
) -> List[Dict[str, str]]:
    """Query squeue, and return one dictionary a job, ended ones too; fields of which nothing is said are left
    out.

    `job_id`: a number (of an array: all that is left of it) or an array's task, `11_2`; "" for all jobs.
    Raises UnknownJob, RunError.
    """
    if job_id and not _NAME.fullmatch(job_id):
        raise RunError([squeue, "-j", job_id], 2, stderr=f"{job_id!r} is not a job number")
    delimiter = f"@{os.urandom(16).hex()}@"
    squeue_format = ",".join(f"{word}:0{delimiter}" for _, word in fields)
    argv = [
        squeue,
        "--local",
        "--all",
        "--noheader",
        "--states=all",
    ]
    if "_" in job_id:
        argv.append("--array")
    if job_id:
        argv += ["-j", job_id]
    done = runner.run(argv, timeout=DEADLINE, check=False, env={**UNSET, **UNIX_TIMES, "SQUEUE_FORMAT2": squeue_format})
    if done.returncode:
        if "invalid job id" in done.stderr.lower():
            raise UnknownJob(argv, done.returncode, done.stdout, done.stderr)
        raise RunError(argv, done.returncode, done.stdout, done.stderr)
    job_records = split_records(done.stdout, delimiter, fields)
    if job_records is None:
        raise RunError(argv, 1, stderr="squeue did not print the requested fields")
    if job_id and not job_records:
        raise UnknownJob(argv, 1, stderr=f"Job {job_id} not found")
    return job_records


def split_records(
    printed: str, delimiter: str, fields: Tuple[Tuple[str, str], ...] = FIELDS
) -> Optional[List[Dict[str, str]]]:
    """Return the records in output that has `delimiter` behind each field; None when it is something else."""
    values = printed.split(delimiter)
    count, rest = divmod(len(values) - 1, len(fields))
    if rest or values[-1].strip():
        return None
    job_records: List[Dict[str, str]] = []
    for start in range(0, count * len(fields), len(fields)):
        # The line feed that ends a record stands before the first field of the next.
        record_values = [value.strip() for value in values[start : start + len(fields)]]
        if not record_values[0].isdigit():
            return None
        job_records.append({name: value for (name, _), value in zip(fields, record_values) if value not in _NOTHING})
    return job_records
