"""What one rank of a bench run is to do, and when it has samples enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LEAST = 3
"""Samples of a figure, whatever the time."""


@dataclass(frozen=True)
class Assignment:
    """One phase of one rank. `threads`: cores of this rank; `patience`: seconds that it may wait for a quiet machine;
    `deadline`: the time.monotonic() after which LEAST samples are enough, the same clock in all processes of a
    machine; `tag` names the files of this start. A result says what is left of the patience."""

    phase: str  # save, train, leave, cold, hot, or replay- and a writer
    size: str
    mode: str
    rank: int
    world: int
    threads: int
    repeat: int
    deadline: float
    patience: float
    directory: str
    tag: str

    def enough(self, taken: int, slowest: Callable[[float], float]) -> bool:
        """Whether `taken` samples are. All ranks ask together, `slowest` being the largest of what they say."""
        return taken >= self.repeat or (taken >= LEAST and slowest(time.monotonic()) > self.deadline)

    @property
    def result(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.json"

    @property
    def log(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.log"
