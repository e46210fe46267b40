"""Note each job and its checkpoint root in the user's state directory, so that `job status JOB` needs no root."""

from __future__ import annotations

import contextlib
import json
import os
from typing import List, Mapping, Optional, Tuple

from hyperpod_kit.job.records import ledger
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.untrusted import by_descriptor


def index_file_path(env: Mapping[str, str] = os.environ) -> str:
    """Return the path of the index, which has one JSON line for each run of a batch script, newest last."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "hyperpod-kit", "jobs.jsonl")


def append_job_and_root(job: JobEnvironment, root: str, env: Mapping[str, str] = os.environ) -> None:
    """Append a line for this run. An OSError is ignored: a home that cannot be written is no reason to stop a job."""
    path = index_file_path(env)
    line = json.dumps({"job": job.id.slurm_id, "raw": job.id.raw, "root": root}) + "\n"
    with contextlib.suppress(OSError):
        by_descriptor.make_parents(path)
        fd = by_descriptor.open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def find(job: str, env: Mapping[str, str] = os.environ) -> Optional[Tuple[str, str]]:
    """Return (job, root) of a job, None when it is not noted. Raises OSError.

    `job` is a number as in `123`; for an array's task its name `123_4`, or its own number.
    """
    for row in reversed(ledger.read(index_file_path(env))):
        if row.get("job") == job:
            return job, str(row["root"])
    if tasks(job, env):
        return None  # its last task has the same number
    for row in reversed(ledger.read(index_file_path(env))):
        if row.get("raw") == job:
            return str(row["job"]), str(row["root"])
    return None


def tasks(array: str, env: Mapping[str, str] = os.environ) -> List[str]:
    """Return the names of the tasks of this array that are noted, by number. Raises OSError."""
    names = {str(row.get("job")) for row in ledger.read(index_file_path(env))}
    task_names = [name for name in names if name.startswith(f"{array}_")]
    return sorted(task_names, key=lambda name: int(name.rpartition("_")[2] or 0))
