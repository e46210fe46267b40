"""Which checkpoint root a job works on, noted in the user's state directory: `job status JOB` needs no more."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Mapping, Optional, Tuple

from hyperpod_kit.job import ledger
from hyperpod_kit.slurm.environment import JobEnvironment


def notes(env: Mapping[str, str] = os.environ) -> str:
    """The file; one JSON line a run of a batch script, newest last."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "hyperpod-kit", "jobs.jsonl")


def note(job: JobEnvironment, root: str, env: Mapping[str, str] = os.environ) -> None:
    """Best effort: a home that cannot be written is no reason to stop a job."""
    path = notes(env)
    line = json.dumps({"job": job.job_id, "id": job.requeue_id, "root": root}) + "\n"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def find(job: str, env: Mapping[str, str] = os.environ) -> Optional[Tuple[str, str]]:
    """(job id, root) of `123` or of an array's task `123_4`; None when nobody noted it. Raises OSError."""
    for row in reversed(ledger.read(notes(env))):
        if job in (row.get("job"), row.get("id")):
            return str(row["job"]), str(row["root"])
    return None
