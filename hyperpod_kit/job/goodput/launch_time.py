"""Turns rank 0's rows of one launch of the ranks into pieces of time. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.job.decide.outcome_kind import LaunchEnd
from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.pieces import PieceRow, TimePiece
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.slurm.phase import Phase

LAUNCH, IMPORT, RENDEZVOUS, FIRST_STEP = "launch", "import and build", "rendezvous", "first step"
"""Parts of a start-up."""

LONGEST_GAP = 60.0
"""Most seconds between two rows of a live rank."""

STANDS = 3.0
"""A step counts as a hang once it takes this many times as long as the slowest one."""

_LEAST_STAND = 1.0
"""Seconds up to which an open step never counts as a hang."""


AFTER: Dict[LaunchEnd, TimeCause] = {
    LaunchEnd.RUNS: TimeCause.CLOSE,
    LaunchEnd.FINISHED: TimeCause.CLOSE,
    LaunchEnd.REQUESTED: TimeCause.CLOSE,
    LaunchEnd.CRASHED: TimeCause.BACK_OFF,
    LaunchEnd.HUNG: TimeCause.HANG,
    LaunchEnd.LOST: TimeCause.HANG,
    LaunchEnd.PEER_LOST: TimeCause.HANG,
}
"""The cause of the time between the end of rank 0 and the end of the attempt."""

_PHASES: Tuple[Tuple[str, TimeCause, str], ...] = (
    (time_rows.IMPORT, TimeCause.START_UP, IMPORT),
    (Phase.START.value, TimeCause.START_UP, RENDEZVOUS),
    (Phase.RESTORE.value, TimeCause.RESTORE, ""),
)
_BETWEEN: Tuple[Tuple[str, TimeCause, str], ...] = (
    (Phase.SAVE.value, TimeCause.SAVES, ""),
    (time_rows.DATA, TimeCause.DATA, ""),
)
_LAST: Tuple[Tuple[str, TimeCause, str], ...] = (
    (Phase.CLOSE.value, TimeCause.CLOSE, ""),
    (Phase.OVER.value, TimeCause.CLOSE, ""),
)
_CAUSES = {name: (cause, part) for name, cause, part in (*_PHASES, *_BETWEEN, *_LAST)}


class _Stretch(NamedTuple):
    """Time between two rows. `seconds`: by phase; `work`: of steps, of which `before` + 1 to `step` were completed."""

    end: float
    seconds: Mapping[str, float]
    work: float
    before: int
    step: int


def pieces_of(
    rows: Sequence[TimeRow], redone_from_step: Optional[int], ending: LaunchEnd, end: float, start: float
) -> List[TimePiece]:
    """Return the pieces of one launch.

    `rows`: of one process, in order, one at least; `redone_from_step`: the first step that a later start did again,
    None where none did; `end`: of the launch; `start`: no piece begins before it.
    """
    laid = PieceRow(max(start, rows[0].began), end)
    stretches = _stretches(rows)
    compiling = _extra_seconds_of_first_step(rows[-1])
    opened = rows[-1].seconds[time_rows.OPEN_STEP]
    open_work = _take_total_from_last_amounts([stretch.work for stretch in stretches], opened)
    tail = _causes_of_open_step_seconds(rows[-1], opened, ending)
    for stretch, under_way in zip(stretches, open_work):
        completed = stretch.work - under_way
        compiled = min(completed, compiling)
        compiling -= compiled
        lasted = _part_that_lasted(stretch, redone_from_step)
        judged = completed - compiled + stretch.seconds[Phase.EVALUATION.value]
        share = 0.0
        if opened:
            share = under_way / opened
        laid.append_pieces_in_proportion_until(
            stretch.end,
            (
                *((cause, part, stretch.seconds[name]) for name, cause, part in _PHASES),
                (TimeCause.START_UP, FIRST_STEP, compiled),
                (TimeCause.LASTED, "", judged * lasted),
                (TimeCause.TWICE, "", judged * (1.0 - lasted)),
                *((cause, part, stretch.seconds[name]) for name, cause, part in _BETWEEN),
                *((cause, part, seconds * share) for cause, part, seconds in tail),
                *((cause, part, stretch.seconds[name]) for name, cause, part in _LAST),
            ),
        )
    pieces = laid.pieces
    if ending is LaunchEnd.HUNG and rows[-1].phase is not Phase.STEP and not rows[-1].over:
        pieces = _hung_since(pieces, rows[-1].since)
    rest = PieceRow(laid.end, end)
    _after(rest, rows[-1], ending, end)
    return [*pieces, *rest.pieces]


def _stretches(rows: Sequence[TimeRow]) -> List[_Stretch]:
    stretches: List[_Stretch] = []
    seconds: Mapping[str, float] = {name: 0.0 for name in rows[0].seconds}
    step = _step_before(rows)
    for row in rows:
        passed = {name: max(0.0, row.seconds[name] - seconds[name]) for name in row.seconds}
        work = row.seconds[Phase.STEP.value] - seconds[Phase.STEP.value]
        work += row.seconds[time_rows.OPEN_STEP] - seconds[time_rows.OPEN_STEP]
        reached = step
        if row.step is not None:
            reached = max(step, row.step)
        stretches.append(_Stretch(row.t, passed, max(0.0, work), step, reached))
        seconds, step = row.seconds, reached
    return stretches


def _step_before(rows: Sequence[TimeRow]) -> int:
    """Return the step before the first one of this launch, -1 where no row has a step."""
    for row in rows:
        if row.begins is not None:
            return row.begins - 1
    for row in rows:
        if row.step is not None:
            return row.step - max(1, row.first[0])
    return -1


def _take_total_from_last_amounts(amounts: Sequence[float], total: float) -> List[float]:
    """Return what is taken of each amount when `total` is taken from the last ones, as far as each goes."""
    taken: List[float] = []
    for amount in reversed(amounts):
        part = min(amount, total)
        total -= part
        taken.append(part)
    return taken[::-1]


def _steps_after_the_first(row: TimeRow) -> int:
    if row.step is None or row.begins is None:
        return 0
    return max(0, row.step - row.begins + 1 - row.first[0])


def usual_step(row: TimeRow) -> Optional[float]:
    """Return the average seconds of a step, without those of the first report; None where there was no other."""
    steps = _steps_after_the_first(row)
    if not steps:
        return None
    return max(0.0, row.seconds[Phase.STEP.value] - row.first[1]) / steps


def _extra_seconds_of_first_step(row: TimeRow) -> float:
    """Return the seconds of the first step beyond the usual ones: it compiles kernels and fills caches."""
    usual = usual_step(row)
    if usual is None:
        return 0.0
    return max(0.0, row.first[1] - usual * row.first[0])


def _part_that_lasted(stretch: _Stretch, redone_from_step: Optional[int]) -> float:
    """Return the part of the steps in a stretch that no later start did again."""
    if redone_from_step is None:
        return 1.0
    is_any_step_completed = stretch.step != stretch.before
    if not is_any_step_completed and stretch.step + 1 < redone_from_step:
        return 1.0
    if not is_any_step_completed:
        return 0.0
    return min(1.0, max(0.0, (redone_from_step - 1 - stretch.before) / (stretch.step - stretch.before)))


def _causes_of_open_step_seconds(
    row: TimeRow, open_step_seconds: float, ending: LaunchEnd
) -> List[Tuple[TimeCause, str, float]]:
    """Return the causes of the time in the open step, each with its part and seconds."""
    usual = usual_step(row)
    if ending is LaunchEnd.HUNG:
        return [(TimeCause.HANG, "", open_step_seconds)]
    if ending is LaunchEnd.FINISHED:
        return [(TimeCause.CLOSE, "", open_step_seconds)]
    if row.step is None:
        return [(TimeCause.START_UP, FIRST_STEP, open_step_seconds)]
    stands = _is_open_step_hanging(row, open_step_seconds, usual)
    if ending is LaunchEnd.RUNS and stands:
        return [(TimeCause.HANG, "", open_step_seconds)]
    if ending is LaunchEnd.RUNS:
        return [(TimeCause.LASTED, "", open_step_seconds)]
    if ending is LaunchEnd.REQUESTED or (ending is LaunchEnd.CRASHED and not stands):
        return [(TimeCause.TWICE, "", open_step_seconds)]
    # The step was cut short at an unknown moment, which was noticed later: half a step is the best estimate.
    cut = min(open_step_seconds, (usual or row.first[1]) / 2)
    return [(TimeCause.TWICE, "", cut), (TimeCause.HANG, "", open_step_seconds - cut)]


def _is_open_step_hanging(row: TimeRow, open_step_seconds: float, usual: Optional[float]) -> bool:
    """Return whether the open step takes far longer than the slowest one, or than the first report without others."""
    slowest = max(row.slowest, 0.0)
    if not usual:
        slowest = max(row.slowest, row.first[1])
    return open_step_seconds > max(_LEAST_STAND, STANDS * slowest)


def _hung_since(pieces: Sequence[TimePiece], since: float) -> List[TimePiece]:
    """Return the pieces with the time from `since` on as a hang."""
    cut_pieces: List[TimePiece] = []
    for piece in pieces:
        if piece.start < since < piece.end:
            cut_pieces += [piece._replace(end=since), piece._replace(start=since, cause=TimeCause.HANG, part="")]
        elif piece.end <= since:
            cut_pieces.append(piece)
        else:
            cut_pieces.append(piece._replace(cause=TimeCause.HANG, part=""))
    return cut_pieces


def _after(rest: PieceRow, row: TimeRow, ending: LaunchEnd, end: float) -> None:
    """Append the time from the last row to the end of the launch."""
    if row.over:
        rest.append_piece_until(end, AFTER[ending])
    elif ending is LaunchEnd.LOST:
        rest.append_piece_until(row.t + LONGEST_GAP, TimeCause.UNATTRIBUTED)
        rest.append_piece_until(end, TimeCause.HANG)
    elif ending in (LaunchEnd.HUNG, LaunchEnd.PEER_LOST):
        rest.append_piece_until(end, TimeCause.HANG)
    elif row.phase in (Phase.STEP, Phase.EVALUATION):
        (cause, part, _), *_ = _causes_of_open_step_seconds(row, row.seconds[time_rows.OPEN_STEP], ending)
        rest.append_piece_until(end, cause, part)
    else:
        rest.append_piece_until(end, *_CAUSES[row.phase.value])
