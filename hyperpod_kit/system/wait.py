"""Pauses that grow, and the one way to wait for a condition: with a bound.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from typing import Callable, NamedTuple, Optional, TypeVar

T = TypeVar("T")

_MOST_GROWTH = 64
"""Far beyond every ceiling, and a number that a float still has."""


class BackOff(NamedTuple):
    """Seconds between tries: `first`, then `factor` times as many each time, never more than `longest`.

    `by_chance`: this share of each pause is drawn, so that those who failed together do not come back together.
    """

    first: float
    longest: float
    factor: float = 2.0
    by_chance: float = 0.0

    def seconds_without_jitter(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, as if nothing were drawn; 0.0 after none."""
        if failures <= 0:
            return 0.0
        return float(min(self.longest, self.first * self.factor ** min(failures - 1, _MOST_GROWTH)))

    def pause_seconds(self, failures: int, draw: Optional[Callable[[], float]] = None) -> float:
        """Seconds to wait after so many failures in a row. `draw`: a number from 0.0 to 1.0 by chance."""
        full = self.seconds_without_jitter(failures)
        if not self.by_chance:
            return full
        if draw is None:
            import random  # seldom needed, and dear to what runs twice a minute

            draw = random.random
        return full * (1.0 - self.by_chance + self.by_chance * draw())


def fixed_pause(seconds: float) -> BackOff:
    """The same pause each time."""
    return BackOff(seconds, seconds)


def poll_until(
    check: Callable[[], T],
    is_final: Callable[[T], object],
    pauses: BackOff,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `check` until `is_final` is true of its result or `seconds` are over; return the last result.

    It is called at least once, and once more at the very end.
    """
    end = clock() + seconds
    failures = 0
    while True:
        outcome = check()
        remaining = end - clock()
        if is_final(outcome) or remaining <= 0:
            return outcome
        failures += 1
        sleep(min(pauses.pause_seconds(failures), remaining))
