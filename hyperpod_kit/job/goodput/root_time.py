"""Reads the raw logs of the jobs on a checkpoint root for job_time.py.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.job.goodput import job_time, time_rows
from hyperpod_kit.job.goodput.job_time import JobStanding, JobTime, RunKey, RunLog
from hyperpod_kit.job.goodput.time_rows import RunRow, TimeRow
from hyperpod_kit.job.records import ledger, ledger_row, state_place


def runs(root: str) -> List[RunLog]:
    """Return every run on the root. Raises OSError; for a root in S3 JobError, CheckpointError."""
    return runs_in(state_place.state_directory_of_root(root))


def runs_in(state: str) -> List[RunLog]:
    """Return every run that a directory of records has. Raises OSError."""
    return runs_of(state, ledger.read(os.path.join(state, "attempts.jsonl")))


def runs_of(state: str, ledger_rows: Sequence[ledger.Row]) -> List[RunLog]:
    """Return every run of a directory of records whose ledger has been read. Raises OSError."""
    rows = [row for row in ledger_rows if not ledger_row.problem(row)]
    times: Dict[str, Sequence[TimeRow]] = {}
    run_rows: Dict[RunKey, RunRow] = {}
    for row in rows:
        key = job_time.run_key(row)
        if key not in run_rows:
            run_row = time_rows.read_run(state, time_rows.run_name(*key))
            if run_row is not None:
                run_rows[key] = run_row
        name = row.get("attempt")
        if row.get("event") == "attempt" and name and name not in times:
            times[name] = time_rows.read(state, name)
    return job_time.logs_of(rows, times, run_rows)


def of_job(root: str, job: str, now: float, standing: Optional[JobStanding] = None) -> JobTime:
    """Return the time of one job on the root. Raises OSError; for a root in S3 JobError, CheckpointError."""
    return job_time.account(runs(root), job, now, standing)
