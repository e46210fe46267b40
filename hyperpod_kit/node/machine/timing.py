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


def poll_until(
    check: Callable[[], T],
    is_final: Callable[[T], bool],
    *,
    seconds: float,
    clock: Clock,
    first: float = 0.1,
    longest: float = 5.0,
) -> T:
    """Call `check` until `is_final` accepts its result or `seconds` are over, by the clock of a node, with
    pauses that double from `first` to `longest`; return the last result. See `wait.poll_until`."""
    pauses = BackOff(first, longest)
    return wait.poll_until(check, is_final, pauses, seconds=seconds, clock=clock.monotonic, sleep=clock.sleep)


def wait_for(
    condition: Callable[[], Optional[T]], *, seconds: float, clock: Clock, first: float = 0.1, longest: float = 5.0
) -> Optional[T]:
    """The first result of `condition` that is not None, or None after `seconds`: see `poll_until`."""
    return poll_until(
        condition, lambda outcome: outcome is not None, seconds=seconds, clock=clock, first=first, longest=longest
    )
