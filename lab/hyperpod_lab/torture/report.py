"""What a part of the torture has done, and the time that it may take."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_KEPT = 20


@dataclass
class PartOutcome:
    """One part's outcome. `violations` is empty, or the engine is broken; each names what to repeat."""

    name: str
    requested: int
    done: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def record_violation(self, what: str) -> None:
        """Record a violation; beyond the first few only their number is kept."""
        self.counts["violations"] += 1
        if len(self.violations) < _KEPT:
            self.violations.append(what)

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.requested,
            "done": self.done,
            "seconds": round(self.seconds, 1),
            "counts": dict(sorted(self.counts.items())),
            "violations": self.violations,
        }


class Budget:
    """Wall-clock seconds, measured from the beginning; of a larger one, if there is one, which can be stopped."""

    def __init__(self, seconds: float, parent: Budget | None = None) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._of = parent

    @property
    def remaining(self) -> float:
        return self._end - time.monotonic()

    @property
    def over(self) -> bool:
        return self.remaining <= 0 or (self._of is not None and self._of.over)

    def stop(self) -> None:
        """End the budget now."""
        self._end = time.monotonic()
