"""Writes the row that `job run` keeps of each run of its batch script: when Slurm queued and started it, what it holds.

Best effort: no job fails when the row cannot be written.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import glob
import pwd
import re
import time
from typing import Callable, Mapping, Optional, Tuple

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.goodput.time_log import append
from hyperpod_kit.job.goodput.time_rows import RunRow
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment

_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_DEVICE = "/dev/nvidia[0-9]*"


RunQuery = Callable[[JobEnvironment], Tuple[Mapping[str, str], float]]
"""Returns the job's record with its times, and when it came into the queue last. Raises HyperpodKitError."""


def append_run_row(
    state: str,
    life: str,
    job: JobEnvironment,
    query: RunQuery,
    env: Mapping[str, str],
    now: Callable[[], float] = time.time,
) -> None:
    """Append the row of this run; nothing is raised where the query fails or the row cannot be written."""
    record: Mapping[str, str] = {}
    queued = 0.0
    with contextlib.suppress(HyperpodKitError):
        record, queued = query(job)
    row = RunRow(
        job.id.slurm_id,
        job.restart,
        round(now(), 3),
        queued,
        control.parse_slurm_time_or_zero(record.get("StartTime", "")),
        gpus_of(record, env, len(job.nodes)),
        job.nodes,
        _owner(record, env),
        record.get("Partition") or env.get("SLURM_JOB_PARTITION", ""),
        env.get("SLURM_CLUSTER_NAME", ""),
    )
    with contextlib.suppress(OSError, ValueError):
        append(
            time_rows.path(state, time_rows.run_name(job.id.slurm_id, life, job.restart)), time_rows.encoded_run(row)
        )


def gpus_of(record: Mapping[str, str], env: Mapping[str, str], nodes: int) -> Optional[int]:
    """Return the GPUs of a job, None where they are not known.

    They are those in the job's record, where Slurm counts them; otherwise the GPUs of this node times the nodes: those
    that Slurm gave to the job on it or, where Slurm does not give GPUs, those that the node has.
    """
    match = _GPUS.search(record.get("AllocTRES", ""))
    if match:
        return int(match.group(1))
    allocated = env.get("SLURM_GPUS_ON_NODE", "")
    if allocated.isdigit():
        gpus_on_node = int(allocated)
    else:
        gpus_on_node = len(glob.glob(_DEVICE))
    if not gpus_on_node and not record:
        return None
    return gpus_on_node * nodes


def _owner(record: Mapping[str, str], env: Mapping[str, str]) -> str:
    name = record.get("User") or env.get("SLURM_JOB_USER", "")
    if name:
        return name
    with contextlib.suppress(KeyError, ValueError):
        return pwd.getpwuid(int(env.get("SLURM_JOB_UID", ""))).pw_name
    return ""
