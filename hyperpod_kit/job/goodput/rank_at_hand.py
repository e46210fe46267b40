"""Reads the current progress of rank 0 of an attempt that runs on this node as this user.

A row of the time ledger may be a minute old. Where rank 0 runs on this node, a row of this moment is made from the
memory that the rank writes to, which the rank's environment names. Nothing is written.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_PROGRESS, HPK_STATE
from hyperpod_kit.job.goodput import memory_captures
from hyperpod_kit.job.goodput.job_time import SILENT, RunLog
from hyperpod_kit.job.goodput.time_log import RankTime
from hyperpod_kit.job.goodput.time_rows import OPEN_STEP, TimeRow
from hyperpod_kit.slurm import progress
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.phase import Phase

_LARGEST = 1 << 20
"""Most bytes of an environment that are read."""

_TURNED_BACK = 0.1
"""Seconds by which a later count of a phase may be smaller than an earlier one of the same process."""


def append_current_rows_of_local_ranks(runs: Sequence[RunLog], state: str, now: float) -> None:
    """Append the row of this moment to each running attempt whose rank 0 is on this node.

    `state`: the directory of the records; `now`: Unix seconds.
    """
    for run in runs:
        if not run.attempts:
            continue
        attempt = run.attempts[-1]
        if attempt.kind or not attempt.rows or now - attempt.rows[-1].t > SILENT:
            continue
        row = _row_of(attempt.name, state, attempt.rows[-1], now)
        if row is not None:
            attempt.rows = [*attempt.rows, row]


def _row_of(attempt: str, state: str, last: TimeRow, now: float) -> Optional[TimeRow]:
    """Return the row of this moment; None where rank 0 is not on this node, keeps no clock, or is of another launch."""
    if last.over:
        return None
    for env in _environments(attempt):
        if not _is_rank_0_of_launch(env, last.launch, state):
            continue
        with contextlib.suppress(OSError, ValueError), progress.open_progress(env.get(HPK_PROGRESS, "")) as reported:
            if reported.read_phase_clock() is None:
                return None
            row = RankTime(last.launch, last.node, last.began).row(reported)
            if not _goes_on(last, row):
                return None
            return row._replace(captured=memory_captures.newest(env, now))
    return None


def _is_rank_0_of_launch(env: Mapping[str, str], launch: str, state: str) -> bool:
    """Return whether an environment is of rank 0 of this launch, with this directory of records."""
    if env.get("SLURM_PROCID") != "0":
        return False
    if step_launch_id_with_srun_port(env) != launch:
        return False
    return _is_same(env.get(HPK_STATE), state)


def _environments(attempt: str) -> Iterator[Dict[str, str]]:
    """Yield the environments of this user's processes of the attempt. Raises OSError."""
    attempt_variable = f"{HPK_ATTEMPT}={attempt}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid != os.geteuid():
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read(_LARGEST).split(b"\0")
            if attempt_variable in variables:
                yield dict(
                    variable.decode("utf-8", "replace").partition("=")[::2]
                    for variable in variables
                    if b"=" in variable
                )


def _is_same(path: Optional[str], other_path: str) -> bool:
    """Return whether both paths lead to the same file; False where one cannot be read."""
    if not path:
        return False
    try:
        return os.path.samefile(path, other_path)
    except OSError:
        return False


def _goes_on(last: TimeRow, row: TimeRow) -> bool:
    """Return whether a row continues the counts of the last one: torchrun may have restarted its workers meanwhile."""
    counted = [name for name in last.seconds if name not in (OPEN_STEP, Phase.STEP.value)]
    steps = [each.seconds[Phase.STEP.value] + each.seconds[OPEN_STEP] for each in (last, row)]
    is_step_time_continued = steps[1] >= steps[0] - _TURNED_BACK
    if not is_step_time_continued:
        return False
    return all(row.seconds[name] >= last.seconds[name] - _TURNED_BACK for name in counted)
