"""Time as something that is passed in, and the one way to wait: for a condition, with a bound.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from typing import Callable, Optional, TypeVar

T = TypeVar("T")


class Clock:
    """The machine's clock; tests pass one that does not wait."""

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def look_until(
    look: Callable[[], T],
    good: Callable[[T], bool],
    *,
    seconds: float,
    clock: Clock,
    first: float = 0.1,
    longest: float = 5.0,
) -> T:
    """What the first good look found, or the last one after `seconds`.

    The pause between two looks doubles from `first` to `longest`. There is at least one, and one more at the very end.
    """
    end = clock.monotonic() + seconds
    pause = first
    while True:
        found = look()
        left = end - clock.monotonic()
        if good(found) or left <= 0:
            return found
        clock.sleep(min(pause, left))
        pause = min(pause * 2, longest)


def wait_for(
    condition: Callable[[], Optional[T]], *, seconds: float, clock: Clock, first: float = 0.1, longest: float = 5.0
) -> Optional[T]:
    """The first result of `condition` that is not None, or None after `seconds`: see `look_until`."""
    return look_until(
        condition, lambda found: found is not None, seconds=seconds, clock=clock, first=first, longest=longest
    )
