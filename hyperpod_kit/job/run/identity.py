"""Establish which job this is, before anything is done in its name, and on which of its components it runs.

A job that is submitted from inside of an array's task inherits SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID (seen with
22.05 and 24.11) and is no task of that array: Slurm's own record says what it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Optional, Sequence, Tuple

from hyperpod_kit.errors import JobError, RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId


def job_as_slurm_records_it(runner: Runner, job: JobEnvironment) -> Optional[JobEnvironment]:
    """Return the job as Slurm's record has it, where its environment may be wrong.

    None when slurmctld does not answer.
    """
    if not job.id.task or job.id.array == job.id.raw:
        return job
    plain = replace(job, id=JobId(job.id.raw))
    try:
        recorded_id = JobId.from_record(control.query_job_record(runner, plain.id))
    except RunError as err:
        if control.is_unknown_job(err):
            return plain
        return None
    if recorded_id == job.id:
        return job
    return plain


def components(job: JobEnvironment, srun_args: Sequence[str], nodes: int) -> Tuple[int, ...]:
    """Return the offsets of the components that the step of a heterogeneous job runs over, () for every other job.

    All of them, unless `--srun-args --het-group=…` names some. Raises JobError for what such a job cannot have.
    """
    if not job.groups:
        return ()
    if nodes:
        raise JobError(
            f"--nodes {nodes}: a heterogeneous job has no spare nodes, Slurm fixes the nodes of each of its "
            f"{len(job.groups)} components",
            hint="leave out --nodes, or submit a homogeneous job with one node more",
        )
    het_group_range = _last_het_group_range(srun_args)
    if het_group_range is None:
        return tuple(range(len(job.groups)))
    try:
        offsets = tuple(int(name[1:]) for name in expand(f"g[{het_group_range}]"))
    except ValueError:
        offsets = ()
    if not offsets or max(offsets) >= len(job.groups):
        raise JobError(f"--het-group={het_group_range}: this job has the components 0 to {len(job.groups) - 1}")
    return offsets


def _last_het_group_range(srun_args: Sequence[str]) -> Optional[str]:
    """Return the components that the last `--het-group=` names, None without one."""
    het_group_range: Optional[str] = None
    for argument in srun_args:
        match = re.fullmatch(r"--(?:het|pack)-group=(\S+)", argument)
        if match:
            het_group_range = match.group(1)
    return het_group_range
