"""Who has cancelled a job, by the log of slurmctld: no record of a job says that while slurmctld has it.

Accounting has it too (`sacct`: CANCELLED by 0), where there is some. The line is the same in 20.11, 22.05 and
24.11, at the level `info`, which is Slurm's default.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from typing import FrozenSet

from hyperpod_kit.errors import Unreachable, Untrusted
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, running_config
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.untrusted import files

TAIL = 16 << 20
"""Bytes at the end of the log that are read: those of the last minutes."""

SECONDS_BEFORE_END = 5.0
"""Seconds from the request to the end of the job as slurmctld has it: both are of the same call."""

_REQUEST = re.compile(
    r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[^\]\n]*\] "
    r"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=([0-9_+]{1,40}) uid (\d{1,10})"
)


def read_log_tail(runner: Runner) -> str:
    """Return the end of slurmctld's log. Raises RunError, Unreachable."""
    config = running_config.parse_show_config(
        runner.run(["scontrol", "show", "config"], timeout=control.DEADLINE).stdout
    )
    path = config.get("slurmctldlogfile", "")
    if not path:
        raise Unreachable("slurmctld has no log of its own (SlurmctldLogFile)")
    try:
        fd, status = files.open_regular_file_to_read(path)
        with os.fdopen(fd, "rb") as file:
            file.seek(max(0, status.st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except (OSError, Untrusted) as err:
        raise Unreachable(f"slurmctld's log cannot be read: {err}") from err


def uids_of_cancel(log: str, job: JobId, ended_at: float) -> FrozenSet[int]:
    """Return the users who asked slurmctld to cancel or signal the job when it ended, at `ended_at` in Unix seconds.

    Somebody may have made slurmctld log a line of theirs, which adds a user and takes none away.
    """
    names = {job.slurm_id, job.raw} - {""}
    uids = set()
    for line in log.splitlines():
        match = _REQUEST.fullmatch(line)
        if match is None or match.group(2) not in names:
            continue
        seconds = ended_at - control.parse_slurm_time_or_zero(match.group(1))
        if -1.0 <= seconds <= SECONDS_BEFORE_END:
            uids.add(int(match.group(3)))
    return frozenset(uids)
