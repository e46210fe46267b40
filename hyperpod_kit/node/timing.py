"""Time as something that is passed in.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from typing import Callable, Optional, TypeVar

from hyperpod_kit.system import wait
from hyperpod_kit.system.wait import BackOff

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
    """`wait.look_until` by the clock of a node, with pauses that double from `first` to `longest`."""
    pauses = BackOff(first, longest)
    return wait.look_until(look, good, pauses, seconds=seconds, clock=clock.monotonic, sleep=clock.sleep)


def wait_for(
    condition: Callable[[], Optional[T]], *, seconds: float, clock: Clock, first: float = 0.1, longest: float = 5.0
) -> Optional[T]:
    """The first result of `condition` that is not None, or None after `seconds`: see `look_until`."""
    return look_until(
        condition, lambda found: found is not None, seconds=seconds, clock=clock, first=first, longest=longest
    )
