"""Tell jobs of the same number apart: each of them is one life of that number.

Numbers start at 1 again when Slurm's controller has lost its state, and a checkpoint root outlives that: rows of
another job of the same number must not count, and attempts need other names. Slurm keeps nothing else through a requeue
that a user's program can see, so the first run of the batch script gives the life its name, and the ledger carries it
on.
"""

from __future__ import annotations

import hashlib
from typing import Any, Mapping, Sequence

from hyperpod_kit.system.process import identify_unless_gone_or_zombie


def id_of_batch_script_run(env: Mapping[str, str], proc: str = "/proc") -> str:
    """Return a name of this run of the batch script, always the same there and another in any other run.

    Outside of a batch script it is "".
    """
    pid = env.get("SLURM_TASK_PID", "")
    try:
        script = identify_unless_gone_or_zombie(int(pid), proc)
        with open(f"{proc}/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read().decode()
    except (OSError, ValueError, IndexError):
        return ""
    if script is None:
        return ""
    what = f"{env.get('SLURMD_NODENAME')} {boot} {pid} {script.started}"
    return hashlib.blake2b(what.encode(), digest_size=3).hexdigest()


def life_of_job_run(rows: Sequence[Mapping[str, Any]], job: str, restart: int, own_run_id: str) -> str:
    """Return the life that run `restart` of a job belongs to.

    `rows` are those of all jobs on the root, and `own_run_id` is the name of this run by `id_of_batch_script_run`.
    """
    if restart:
        for row in reversed(rows):
            if row.get("job") == job:
                return str(row.get("life", ""))
    return own_run_id
