"""Time that passes only when somebody sleeps, or when a test sets `now`."""

from __future__ import annotations

from typing import List

from hyperpod_kit.node.timing import Clock


class FakeClock(Clock):
    """Stands for a node's clock, and for a `clock()` and a `sleep(seconds)` that are passed in."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: List[float] = []

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
