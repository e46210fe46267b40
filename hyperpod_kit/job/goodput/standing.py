"""Queries Slurm for the state of a job, for reports of its time.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, job_states
from hyperpod_kit.slurm.job_id import JobId


def query_job_standing_or_none(runner: Runner, job: str) -> Optional[JobStanding]:
    """Return what Slurm reports of a job; None where it does not reply or no longer knows the job.

    The job's own logs are then the only source.
    """
    try:
        record = control.query_job_record_with_times(runner, JobId.parse(job))
    except HyperpodKitError:
        return None
    state, restart = record.get("JobState", ""), int(record.get("Restarts") or 0)
    started = control.parse_slurm_time_or_zero(record.get("StartTime", ""))
    if state in job_states.WAITS:
        return JobStanding(JobState.WAITS, control.parse_slurm_time_or_zero(record.get("SubmitTime", "")), restart)
    if state in job_states.RUNS:
        return JobStanding(JobState.RUNS, 0.0, restart, started)
    return JobStanding(JobState.OVER, control.parse_slurm_time_or_zero(record.get("EndTime", "")), restart, started)
