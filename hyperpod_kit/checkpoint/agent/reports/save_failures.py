"""Saves that came to nothing: how many in a row, when that is worth a word, and which are nobody's fault.

Trainer and agent count alike, each for its own listeners.
"""

from __future__ import annotations

import time
from typing import Callable, List, NamedTuple, Optional, Tuple

NO_SLOT = "no slot was free"
REPLACED = "a newer save needed its place in memory"
_APART = 256


def is_displaced_by_other_saves(reason: str) -> bool:
    """Whether a save was given up for others that are on their way, on whatever rank: storage is slower than the saves
    come, but nothing is broken."""
    return reason.endswith((NO_SLOT, REPLACED))


class Durable(NamedTuple):
    """The newest save on storage. `at`: when it was seen to be there, Unix seconds."""

    seq: int
    step: int
    at: float


class Tally:
    """Counts in the order in which ends become known. `clock`: Unix seconds.

    in_a_row: saves that came to nothing since the newest durable one; broken: those that something is to blame for.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lost: List[Tuple[int, bool]] = []
        self.durable: Optional[Durable] = None
        self.in_a_row = self.broken = 0

    def record_durable_and_check_recovery(self, seq: int, step: int) -> bool:
        """Record that this save is durable; return whether that ends a series of failures."""
        before = self.in_a_row
        if self.durable is None or seq > self.durable.seq:
            self.durable = Durable(seq, step, self._clock())
            self._lost = [(other, broken) for other, broken in self._lost if other > seq]
            self.in_a_row, self.broken = len(self._lost), sum(broken for _, broken in self._lost)
        return before > 0 and not self.in_a_row

    def record_failure_and_check_report_due(self, seq: int, reason: str) -> bool:
        """Record that this save failed; return whether to report that: the first in a row, and each time it has
        doubled."""
        if self.durable is not None and seq < self.durable.seq:
            return False
        broken = not is_displaced_by_other_saves(reason)
        # Older ones cannot be told apart any more: the next durable one is newer than they are.
        self._lost = [*self._lost[-_APART:], (seq, broken)]
        self.in_a_row += 1
        self.broken += broken
        return self.in_a_row & (self.in_a_row - 1) == 0

    def describe_failures_and_newest_durable(self) -> str:
        """For people: `the 8th in a row; newest durable is step 80, 12 min ago`."""
        count = self.in_a_row
        if count > 1:
            parts = [f"the {ordinal(count)} in a row"]
        else:
            parts = []
        if self.durable is None:
            parts.append("no save has become durable since the start")
        else:
            parts.append(f"newest durable is step {self.durable.step}, {ago(self._clock() - self.durable.at)}")
        return "; ".join(parts)


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `11th`."""
    if number % 100 in (11, 12, 13):
        ending = "th"
    else:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def ago(seconds: float) -> str:
    """`40 s ago`, `12 min ago`, `3 h 5 min ago`."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s ago"
    if rounded < 3600:
        return f"{rounded // 60} min ago"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min ago"
