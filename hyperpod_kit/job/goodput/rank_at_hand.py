"""Rank 0 of an attempt that is at work on this node as this user: what it has written of itself, read at once.

A row of the time ledger may be a minute old. Where rank 0 can be seen, whoever looks makes the row of this moment
himself, of the memory that the rank writes to; the rank's environment names it. Nothing is written.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict, Iterator, Optional, Sequence

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_PROGRESS, HPK_STATE
from hyperpod_kit.job.goodput import memory_captures
from hyperpod_kit.job.goodput.job_time import SILENT, RunLog
from hyperpod_kit.job.goodput.time_log import RankTime
from hyperpod_kit.job.goodput.time_rows import OPEN_STEP, TimeRow
from hyperpod_kit.slurm import progress
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.phase import Phase

_LARGEST = 1 << 20
"""Bytes of an environment that are read."""

_TURNED_BACK = 0.1
"""Seconds by which a later count of a phase may be smaller than one before, and be of the same process all the same."""


def append_current_rows_of_local_ranks(runs: Sequence[RunLog], state: str, now: float) -> None:
    """Give each attempt that is at work the row of this moment, where its rank 0 is at hand. `state`: the directory of
    the records, `now`: Unix seconds."""
    for run in runs:
        attempt = run.attempts[-1] if run.attempts else None
        if attempt is None or attempt.kind or not attempt.rows or now - attempt.rows[-1].t > SILENT:
            continue
        row = _row_of(attempt.name, state, attempt.rows[-1], now)
        if row is not None:
            attempt.rows = [*attempt.rows, row]


def _row_of(attempt: str, state: str, last: TimeRow, now: float) -> Optional[TimeRow]:
    """None where rank 0 is not at hand, keeps no clock, or is of another launch than the last row."""
    if last.over:
        return None
    for env in _environments(attempt):
        if (
            env.get("SLURM_PROCID") != "0"
            or step_launch_id_with_srun_port(env) != last.launch
            or not _is_same(env.get(HPK_STATE), state)
        ):
            continue
        with contextlib.suppress(OSError, ValueError), progress.open_progress(env.get(HPK_PROGRESS, "")) as reported:
            if reported.read_phase_clock() is None:
                return None
            row = RankTime(last.launch, last.node, last.began).row(reported)
            if not _goes_on(last, row):
                return None
            return row._replace(captured=memory_captures.newest(env, now))
    return None


def _environments(attempt: str) -> Iterator[Dict[str, str]]:
    """Of this user's processes of the attempt."""
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
    if not path:
        return False
    try:
        return os.path.samefile(path, other_path)
    except OSError:
        return False


def _goes_on(last: TimeRow, row: TimeRow) -> bool:
    """Whether it counts on where the last row stopped: torchrun may have started its workers anew meanwhile."""
    counted = [name for name in last.seconds if name not in (OPEN_STEP, Phase.STEP.value)]
    steps = [each.seconds[Phase.STEP.value] + each.seconds[OPEN_STEP] for each in (last, row)]
    return steps[1] >= steps[0] - _TURNED_BACK and all(
        row.seconds[name] >= last.seconds[name] - _TURNED_BACK for name in counted
    )
