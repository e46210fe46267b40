"""Time that passes only when somebody sleeps, or when a test sets `now`."""

from __future__ import annotations

from typing import List

from hyperpod_kit.node.machine.timing import Clock


class FakeClock(Clock):
    """Stands for a node's clock, and for a `clock()` and a `sleep(seconds)` that are passed in."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: List[float] = []
        self.set_by = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """Unix seconds; a test sets the clock by `set_by` seconds, which no time has passed for."""
        return self.now + self.set_by

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
