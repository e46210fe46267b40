"""Draws a job's time as two pictures in self-contained SVG: a waterfall of its causes, and a Gantt chart of its nodes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import html
import time as clock
from typing import Dict, List, Sequence, Tuple

from hyperpod_kit.job.base import axes
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.pieces import TimePiece
from hyperpod_kit.job.goodput.time_table import TimeTable, percents, table_of
from hyperpod_kit.untrusted.text import counted

WIDTH, LEFT_MARGIN, RIGHT_MARGIN, ROW = 960, 190, 170, 22
LEAST_BAR = 3.0
"""Width of a bar whose time is too short to be seen."""

COLUMNS = WIDTH - LEFT_MARGIN - RIGHT_MARGIN
"""Columns of a picture, one unit wide each."""

NODES = 64
"""Most nodes that are shown, a line for each."""

COLOURS: Dict[TimeCause, str] = {
    TimeCause.LASTED: "#1a7f37",
    TimeCause.TWICE: "#cf222e",
    TimeCause.START_UP: "#0969da",
    TimeCause.RESTORE: "#54aeff",
    TimeCause.SAVES: "#8250df",
    TimeCause.DATA: "#bf8700",
    TimeCause.HANG: "#bc4c00",
    TimeCause.BACK_OFF: "#e16f24",
    TimeCause.NODES: "#953800",
    TimeCause.QUEUE: "#8c959f",
    TimeCause.CLOSE: "#1b7c83",
    TimeCause.UNATTRIBUTED: "#d0d7de",
}


def waterfall_and_gantt_html(job_time: JobTime) -> str:
    """Return the pictures of one job as HTML, "" for a job that has had no time."""
    table = table_of(job_time.pieces)
    if not table.total_seconds:
        return ""
    begin = clock.strftime("%Y-%m-%d %H:%MZ", clock.gmtime(job_time.pieces[0].start))
    return (
        f"<h3>How the time was spent</h3>\n{waterfall(table)}\n<h3>Attempts by node, from {html.escape(begin)} "
        f"on</h3>\n{gantt(job_time)}"
    )


def waterfall(table: TimeTable) -> str:
    """Return the SVG of a bar for each cause; each begins where the one before it ends, and all are the job's time."""
    causes = [cause for cause in TimeCause if table.seconds.get(cause, 0.0) > 0.0]
    shares = percents([table.seconds[cause] for cause in causes])
    marks: List[str] = []
    passed = 0.0
    for number, (cause, share) in enumerate(zip(causes, shares)):
        seconds = table.seconds[cause]
        x = _x(passed, table.total_seconds)
        width = max(LEAST_BAR, _x(passed + seconds, table.total_seconds) - x)
        y = number * ROW
        marks.append(
            f'<text x="{LEFT_MARGIN - 8}" y="{y + 15}" text-anchor="end">{LABELS[cause]}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[cause]}"/>'
            f'<text x="{WIDTH - RIGHT_MARGIN + 8}" y="{y + 15}">{share:.1f} %, {describe_duration(seconds)}</text>'
        )
        passed += seconds
    return _svg(len(causes) * ROW, "how the time was spent", marks)


def gantt(time: JobTime) -> str:
    """Return the SVG of a line for the time between attempts, and one for each node by the causes of its attempts."""
    begin, end = time.pieces[0].start, time.pieces[-1].end
    nodes = list(dict.fromkeys(name for piece in time.pieces for name in piece.nodes))
    rows = [("no attempt", [piece for piece in time.pieces if not piece.attempt])]
    rows += [(name, [piece for piece in time.pieces if name in piece.nodes]) for name in nodes[:NODES]]
    marks: List[str] = []
    for number, (name, pieces) in enumerate(rows):
        y = number * ROW
        marks.append(f'<text x="{LEFT_MARGIN - 8}" y="{y + 15}" text-anchor="end">{html.escape(name[:28])}</text>')
        marks += [_block(piece, begin, end, y) for piece in _one_piece_per_column(pieces, begin, end)]
    height = len(rows) * ROW + 18
    for at, label in axes.clock_ticks(begin, end):
        marks.append(
            f'<text x="{_x(at - begin, end - begin):.1f}" y="{height - 4}" text-anchor="middle">{label}</text>'
        )
    picture = _svg(height, "attempts by node", marks)
    if len(nodes) > NODES:
        picture += f"<p>and {counted(len(nodes) - NODES, 'more node')}</p>"
    return picture


def _block(piece: TimePiece, begin: float, end: float, y: int) -> str:
    x = _x(piece.start - begin, end - begin)
    width = max(0.5, _x(piece.end - begin, end - begin) - x)
    tooltip = f"{piece.attempt or 'no attempt'}: {LABELS[piece.cause]}, {describe_duration(piece.seconds)}"
    return (
        f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[piece.cause]}">'
        f"<title>{html.escape(tooltip)}</title></rect>"
    )


def _one_piece_per_column(pieces: Sequence[TimePiece], begin: float, end: float) -> List[TimePiece]:
    """Return at most one piece for each column of the picture, as a long job has tens of thousands of pieces.

    The time that a column does not show is carried over to the next ones of the attempt, so that each cause has the
    width of its time.
    """
    width = (end - begin) / COLUMNS
    unshown: Dict[Tuple[str, TimeCause], float] = {}
    drawn: List[TimePiece] = []
    for column, share in enumerate(_seconds_per_column(pieces, begin, width)):
        if not share:
            continue
        for key, seconds in share.items():
            unshown[key] = unshown.get(key, 0.0) + seconds
        attempts = {attempt for attempt, _ in share}
        shown = max((key for key in unshown if key[0] in attempts), key=lambda key: unshown[key])
        unshown[shown] -= sum(share.values())
        start = begin + column * width
        piece = TimePiece(start, start + width, shown[1], attempt=shown[0])
        if drawn and (drawn[-1].attempt, drawn[-1].cause) == shown and start - drawn[-1].end < width / 2:
            drawn[-1] = drawn[-1]._replace(end=piece.end)
        else:
            drawn.append(piece)
    return drawn


def _seconds_per_column(
    pieces: Sequence[TimePiece], begin: float, column_seconds: float
) -> List[Dict[Tuple[str, TimeCause], float]]:
    """Return the seconds by attempt and cause in each column."""
    shares: List[Dict[Tuple[str, TimeCause], float]] = [{} for _ in range(COLUMNS)]
    for piece in pieces:
        first_column = min(COLUMNS - 1, int((piece.start - begin) / column_seconds))
        last_column = min(COLUMNS - 1, int((piece.end - begin) / column_seconds))
        for column in range(first_column, last_column + 1):
            start = begin + column * column_seconds
            seconds = min(piece.end, start + column_seconds) - max(piece.start, start)
            if seconds > 0:
                key = (piece.attempt, piece.cause)
                shares[column][key] = shares[column].get(key, 0.0) + seconds
    return shares


def _x(at: float, total: float) -> float:
    return LEFT_MARGIN + at / total * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)


def _svg(height: int, label: str, marks: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(marks)}</svg>'
