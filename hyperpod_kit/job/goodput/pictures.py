"""A job's time as two pictures: a waterfall of its causes, and what each node did when. SVG that needs nothing else.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import html
from typing import Dict, List, Sequence

from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.pieces import TimePiece
from hyperpod_kit.job.goodput.time_table import TimeTable, percents, table_of
from hyperpod_kit.job.status import duration

WIDTH, LEFT, RIGHT, ROW = 960, 190, 130, 22

NODES = 64
"""Nodes that have a line of their own."""

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
    TimeCause.UNKNOWN: "#d0d7de",
}


def both(time: JobTime) -> str:
    """The pictures of one job; "" of one that has had no time."""
    table = table_of(time.pieces)
    if not table.whole:
        return ""
    return f"{waterfall(table)}\n{gantt(time)}"


def waterfall(table: TimeTable) -> str:
    """Each cause begins where the one before it ends: the whole is the time of the job."""
    causes = [cause for cause in TimeCause if table.seconds.get(cause, 0.0) > 0.0]
    shares = percents([table.seconds[cause] for cause in causes])
    marks: List[str] = []
    passed = 0.0
    for number, (cause, share) in enumerate(zip(causes, shares)):
        seconds = table.seconds[cause]
        x, width = _x(passed, table.whole), max(1.0, _x(passed + seconds, table.whole) - _x(passed, table.whole))
        y = number * ROW
        marks.append(
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{LABELS[cause]}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[cause]}"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{y + 15}">{share:.1f} %, {duration(seconds)}</text>'
        )
        passed += seconds
    return _svg(len(causes) * ROW, "what the time went into", marks)


def gantt(time: JobTime) -> str:
    """A line for the job between its attempts, and one for each node with what its attempts spent their time on."""
    begin, end = time.pieces[0].start, time.pieces[-1].end
    nodes = list(dict.fromkeys(name for piece in time.pieces for name in piece.nodes))
    rows = [("no attempt", [piece for piece in time.pieces if not piece.attempt])]
    rows += [(name, [piece for piece in time.pieces if name in piece.nodes]) for name in nodes[:NODES]]
    marks: List[str] = []
    for number, (name, pieces) in enumerate(rows):
        y = number * ROW
        marks.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{html.escape(name[:28])}</text>')
        marks += [_block(piece, begin, end, y) for piece in _joined(pieces, end - begin)]
    height = len(rows) * ROW + 18
    marks += [
        f'<text x="{_x(part, 4):.1f}" y="{height - 4}" text-anchor="middle">{duration((end - begin) * part / 4)}</text>'
        for part in range(5)
    ]
    more = f"<p>and {len(nodes) - NODES} more nodes</p>" if len(nodes) > NODES else ""
    return _svg(height, "attempts by node", marks) + more


def _block(piece: TimePiece, begin: float, end: float, y: int) -> str:
    x = _x(piece.start - begin, end - begin)
    width = max(0.5, _x(piece.end - begin, end - begin) - x)
    words = f"{piece.attempt or 'no attempt'}: {LABELS[piece.cause]}, {duration(piece.seconds)}"
    return (
        f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[piece.cause]}">'
        f"<title>{html.escape(words)}</title></rect>"
    )


def _joined(pieces: Sequence[TimePiece], whole: float) -> List[TimePiece]:
    """What is narrower than a pixel goes into its neighbour: of a long job there are tens of thousands."""
    least = whole / (WIDTH - LEFT - RIGHT)
    found: List[TimePiece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is None or last.attempt != piece.attempt or last.end < piece.start:
            found.append(piece)
        elif last.cause is piece.cause or piece.seconds < least:
            found[-1] = last._replace(end=piece.end)
        elif last.seconds < least:
            found[-1] = piece._replace(start=last.start)
        else:
            found.append(piece)
    return found


def _x(at: float, whole: float) -> float:
    return LEFT + at / whole * (WIDTH - LEFT - RIGHT)


def _svg(height: int, label: str, marks: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(marks)}</svg>'
