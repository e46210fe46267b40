"""What rank 0's agent decides, as a state machine without clock, disk or network.

A capture goes: sealed by every rank -> `persist` (all write) -> persisted by every rank -> `commit` (rank 0 writes the
manifest) -> `committed`. It is `dropped` as soon as one rank will never have it: the rank skipped it, failed it, died
in mid-copy, or has gone on to a later one.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Set

from .control import Key

PERSIST, COMMIT, COMMITTED, DROPPED, BYE = "persist", "commit", "committed", "dropped", "bye"


class Order(NamedTuple):
    """What is to be done. `commit` is for the coordinator itself, everything else goes to every agent."""

    kind: str
    key: Optional[Key]
    why: str = ""


class _Capture:
    def __init__(self) -> None:
        self.sealed: Set[int] = set()
        self.reports: Dict[int, Any] = {}
        self.state = "sealing"


class Coordinator:
    """Reports of ranks in, orders out. Every method returns the orders that follow, in their order."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._captures: Dict[Key, _Capture] = {}
        self._done: Set[int] = set()
        self._bye = False

    def reports(self, key: Key) -> Dict[int, Any]:
        return self._captures[key].reports

    def sealed(self, rank: int, key: Key) -> List[Order]:
        """`rank` has this capture sealed. Ranks report their captures in the order in which they made them."""
        orders = self._passed(rank, key)
        capture = self._captures.setdefault(key, _Capture())
        capture.sealed.add(rank)
        if capture.state == "dropped":
            orders.append(Order(DROPPED, key, "another rank does not have it"))
        elif capture.state == "sealing" and len(capture.sealed) == self.world:
            capture.state = "persisting"
            orders.append(Order(PERSIST, key))
        elif capture.state == "sealing" and self._done - capture.sealed:
            orders += self._drop(key, f"rank {min(self._done - capture.sealed)} has ended without it")
        return orders

    def skipped(self, rank: int, key: Key, why: str) -> List[Order]:
        """`rank` will never have this capture. It may still be sealing an older one, so that one is left alone."""
        return self._drop(key, f"rank {rank}: {why}")

    def persisted(self, rank: int, key: Key, report: Any) -> List[Order]:
        """`rank` has its shard on storage."""
        capture = self._captures.get(key)
        if capture is None or capture.state != "persisting":
            return []
        capture.reports[rank] = report
        if len(capture.reports) < self.world:
            return []
        capture.state = "committing"
        return [Order(COMMIT, key)]

    def failed(self, rank: int, key: Key, why: str) -> List[Order]:
        """`rank` could not write its shard (or rank 0 the manifest)."""
        return self._drop(key, f"rank {rank}: {why}")

    def committed(self, key: Key) -> List[Order]:
        self._captures[key].state = "committed"
        self._captures[key].reports.clear()
        return [Order(COMMITTED, key), *self._end()]

    def done(self, rank: int, why: str) -> List[Order]:
        """`rank` will make no more captures: its trainer ended, or its agent is lost."""
        self._done.add(rank)
        orders: List[Order] = []
        for key, capture in sorted(self._captures.items()):
            if capture.state == "sealing" and rank not in capture.sealed:
                orders += self._drop(key, f"rank {rank}: {why}")
        return orders + self._end()

    def lost(self, rank: int) -> List[Order]:
        """The agent of `rank` does not answer any more: what it has not written it never will."""
        orders: List[Order] = []
        for key, capture in sorted(self._captures.items()):
            if capture.state == "persisting" and rank not in capture.reports:
                orders += self._drop(key, f"rank {rank}: its agent is lost")
        return orders + self.done(rank, "its agent is lost")

    def _passed(self, rank: int, key: Key) -> List[Order]:
        """A rank that is at `key` will not come back for anything older that it has not sealed."""
        orders: List[Order] = []
        for other, capture in sorted(self._captures.items()):
            if other < key and capture.state == "sealing" and rank not in capture.sealed:
                orders += self._drop(other, f"rank {rank} went on without it")
        return orders

    def _drop(self, key: Key, why: str) -> List[Order]:
        capture = self._captures.setdefault(key, _Capture())
        if capture.state in ("dropped", "committed"):
            return []
        capture.state = "dropped"
        capture.reports.clear()
        return [Order(DROPPED, key, why), *self._end()]

    def _end(self) -> List[Order]:
        busy = any(c.state in ("persisting", "committing") for c in self._captures.values())
        if len(self._done) < self.world or busy or self._bye:
            return []
        self._bye = True
        return [Order(BYE, None)]
