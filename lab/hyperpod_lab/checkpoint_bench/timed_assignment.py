"""What one rank of a bench run is to do, and when it has samples enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hyperpod_kit.storage.bench.replay.assignment import Assignment

LEAST = 3
"""Samples of a figure, whatever the time."""


@dataclass(frozen=True)
class TimedAssignment(Assignment):
    """A phase that ends in time: save, train, leave, cold or hot. `deadline`: the time.monotonic() after which LEAST
    samples are enough, the same clock in all processes of a machine; `patience`: seconds that it may wait for a quiet
    machine. A result says what is left of the patience."""

    deadline: float
    patience: float

    def has_enough_samples(self, taken: int, max_over_ranks: Callable[[float], float]) -> bool:
        """Whether `taken` samples are enough. All ranks call this together; `slowest` returns the largest of their
        values."""
        return taken >= self.repeat or (taken >= LEAST and max_over_ranks(time.monotonic()) > self.deadline)
