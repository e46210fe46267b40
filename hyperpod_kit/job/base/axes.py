"""Ticks of axes that people read: round times of day, and round numbers. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import time
from typing import List, Tuple

_DAY = 86400
_INTERVALS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY)
"""Seconds between two ticks; beyond a day, whole days."""


def clock_ticks(begin: float, end: float, most: int = 6) -> List[Tuple[float, str]]:
    """Return (Unix seconds, label) of round times of day in UTC in a span; the date stands where it changes."""
    interval = _interval((end - begin) / most)
    at = math.ceil(begin / interval) * interval
    ticks: List[Tuple[float, str]] = []
    date = ""
    while at <= end:
        moment = time.gmtime(at)
        day = time.strftime("%m-%d", moment)
        ticks.append((float(at), _clock_label(moment, interval, day if day != date else "")))
        date = day
        at += interval
    return ticks or [(begin, time.strftime("%m-%d %H:%M:%S", time.gmtime(begin)))]


def _interval(least: float) -> int:
    for interval in _INTERVALS:
        if interval >= least:
            return interval
    return math.ceil(least / _DAY) * _DAY


def _clock_label(moment: time.struct_time, interval: int, day: str) -> str:
    if interval >= _DAY:
        return time.strftime("%m-%d", moment)
    form = "%H:%M"
    if interval < 60:
        form = "%H:%M:%S"
    return f"{day} {time.strftime(form, moment)}".strip()


def number_ticks(top: int, most: int = 5) -> List[int]:
    """Return round numbers from 0 to `top`, which is at least 1."""
    magnitude = 10 ** max(0, math.floor(math.log10(max(1.0, top / most))))
    interval = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude * most >= top)
    return list(range(0, top + 1, interval))


def anchor(x: float, width: float, room: float = 48.0) -> str:
    """Return the SVG text-anchor of a label at x, so that the picture's edge does not clip it."""
    if x < room:
        return "start"
    if x > width - room:
        return "end"
    return "middle"
