"""How fast a place grows, and when it will be full, each with how sure that is.

The rate is the median of the slopes between all pairs of days (Theil 1950, Sen 1968), which one odd day does not move;
its interval is Sen's, in which the true rate lies four times out of five where the days scatter around a line. A rate
that changes next week is no part of that.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import Protocol, Sequence

WINDOW = 60
"""Days that are looked at, the newest."""
MIN_ROWS = 3
"""Rows below which nothing is said of growth."""
MIN_SPAN = 2.0
"""Days that they have to span at least."""
DEVIATIONS = 1.2816
"""Of a normal distribution, of which 80 % lie within so many."""
DAY = 86400.0


class SizedDay(Protocol):
    """A row of a history: when, in Unix seconds, and the bytes that were used."""

    @property
    def at(self) -> float: ...

    @property
    def used(self) -> int: ...


@dataclass(frozen=True)
class Growth:
    """Bytes a day, `likely` between `low` and `high` four times out of five, from so many `rows` over `days`."""

    low: float
    likely: float
    high: float
    rows: int
    days: float


@dataclass(frozen=True)
class Forecast:
    """Days until a file system is full: `soonest` and `likely`, `latest`; None for never at that rate."""

    soonest: float | None
    likely: float | None
    latest: float | None


def fit_growth(days: Sequence[SizedDay]) -> Growth | None:
    """Fit the growth of the newest days; None where there are too few."""
    if not days:
        return None
    newest = days[-1].at
    rows = [(day.at / DAY, float(day.used)) for day in days if newest - day.at <= WINDOW * DAY]
    span = rows[-1][0] - rows[0][0]
    if len(rows) < MIN_ROWS or span < MIN_SPAN:
        return None
    slopes = []
    for earlier, later in itertools.combinations(rows, 2):
        if later[0] > earlier[0]:
            slopes.append((later[1] - earlier[1]) / (later[0] - earlier[0]))
    slopes.sort()
    count = len(rows)
    spread = DEVIATIONS * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Growth(slopes[low], statistics.median(slopes), slopes[high], count, span)


def forecast_days_until_full(growth: Growth, free: int) -> Forecast:
    """Forecast when `free` bytes are used up."""
    return Forecast(*(_days_until_full(free, rate) for rate in (growth.high, growth.likely, growth.low)))


def _days_until_full(free: int, rate: float) -> float | None:
    if rate <= 0:
        return None
    return free / rate
