"""The reports of a rank's wrapper to `job run`: the step that the rank has reached, its phase, and its slowest step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any, Deque, Iterable, List, NamedTuple, Optional, Tuple

from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import RankState
from hyperpod_kit.untrusted import parse

WINDOW = 100
"""How many of the last steps are looked at for the slowest."""

FIRST_STEPS = 3
"""Steps of a start that may take longer: kernels are compiled, buffers are made, caches are cold."""

_LARGEST = 1 << 16
_MOST_RANK, _MOST = 1 << 31, 1 << 62


class StepReport(NamedTuple):
    """The report of one rank. `step`: the last one completed; `moved` grows as a phase gets on by itself; `slowest`:
    seconds that the slowest of the last steps took at most, 0 when none was seen."""

    rank: int
    node: str
    step: Optional[int]
    phase: Phase
    moved: int
    slowest: float


class RankMeter:
    """Makes a rank's reports from what it has written, looked at now and then. Time that other phases take is no part
    of a step; that of the first step is not known. Pure: the seconds that have passed are given to it."""

    def __init__(self, rank: int, node: str) -> None:
        self._rank, self._node = rank, node
        self._step: Optional[int] = None
        self._phase = Phase.START
        self._since = self._late = 0.0
        self._done = 0
        self._durations: Deque[Tuple[int, float]] = deque()

    def next_report(self, elapsed: float, state: RankState) -> StepReport:
        """Return the rank's report, `elapsed` seconds after the look before."""
        if Phase.STEP in (state.phase, self._phase):
            self._since += elapsed
        if state.step is not None and state.step != self._step:
            self._advance(state.step, state.begins)
            self._since, self._late = 0.0, elapsed
        self._phase = phase = state.phase
        if phase is Phase.RESTORE:
            self._begin_anew()
        if phase is Phase.STEP and self._done < FIRST_STEPS:
            phase = Phase.FIRST_STEPS
        slowest = max((seconds for _, seconds in self._durations), default=0.0)
        return StepReport(self._rank, self._node, state.step, phase, state.moved, math.ceil(slowest * 1000) / 1000)

    def _advance(self, step: int, begins: Optional[int]) -> None:
        before = self._step
        if before is None or step < before:
            self._begin_anew()
            self._done = 1
            if begins is not None:
                self._done = max(1, step - begins + 1)
        else:
            # The step before may have ended as long before it was seen as the look before that was away.
            self._durations.append((step, self._since + self._late))
            self._done += step - before
        while self._durations and self._durations[0][0] <= step - WINDOW:
            self._durations.popleft()
        self._step = step

    def _begin_anew(self) -> None:
        self._done = 0
        self._since = 0.0
        self._durations.clear()


def encoded(reports: Iterable[StepReport]) -> str:
    """Return reports as text of one line, for decoded(); the node is known from the connection."""
    rows = [[report.rank, report.step, report.phase.value, report.moved, report.slowest] for report in reports]
    return json.dumps(rows, separators=(",", ":"))


def decoded(text: str, node: str) -> List[StepReport]:
    """Return the reports of a node from the text of encoded(). Raises ValueError for what no wrapper sends."""
    rows = parse.parse_json(text, _LARGEST)
    if not isinstance(rows, list):
        raise ValueError("not a list of reports")
    return [_report(row, node) for row in rows]


def _report(row: Any, node: str) -> StepReport:
    # A later version may report more of a rank.
    if not isinstance(row, list) or len(row) < 5:
        raise ValueError("a report has five fields")
    rank, step, phase, moved, slowest = row[:5]
    if type(rank) is not int or not 0 <= rank < _MOST_RANK:
        raise ValueError(f"rank {rank!r}")
    if step is not None and (type(step) is not int or not 0 <= step < _MOST):
        raise ValueError(f"step {step!r}")
    if type(moved) is not int or not 0 <= moved < _MOST:
        raise ValueError(f"moved {moved!r}")
    if type(slowest) not in (int, float) or not 0 <= slowest < 1e9:
        raise ValueError(f"slowest {slowest!r}")
    return StepReport(rank, node, step, _phase_or_most_patient(phase), moved, float(slowest))


def _phase_or_most_patient(name: Any) -> Phase:
    """Return the phase of that name; for one that only a later version knows, the one with the longest patience."""
    try:
        return Phase(name)
    except ValueError:
        return Phase.EVALUATION
