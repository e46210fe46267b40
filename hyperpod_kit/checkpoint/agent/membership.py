"""Which ranks' agents are away, and for how long rank 0's waits for them."""

from __future__ import annotations

import time
from typing import Dict, List, Set

from hyperpod_kit.checkpoint.agent import rpc


class Membership:
    """`hurried`: nobody trains here any more, so no agent is waited for."""

    def __init__(self) -> None:
        self.hurried = False
        self._deadlines: Dict[int, float] = {}
        self._done: Set[int] = set()
        self._given_up: Set[int] = set()

    def set_done(self, rank: int) -> None:
        """Its trainer is gone: it may leave."""
        self._done.add(rank)

    def start_rejoin_deadline(self, rank: int) -> bool:
        """Start to wait for another agent of a rank that has disconnected; return False when none is waited for,
        because the rank is done or nobody trains any more."""
        if self.hurried or rank in self._done:
            return False
        self._deadlines[rank] = time.monotonic() + rpc.REJOIN
        return True

    def clear_missing(self, rank: int) -> bool:
        """Record that the agent of a rank, or the next one, is there; return whether it was missing."""
        was_missing = self._deadlines.pop(rank, None) is not None or rank in self._given_up
        self._given_up.discard(rank)
        return was_missing

    def expire_missing(self) -> List[int]:
        """Those that have been away for too long; they are not waited for any more."""
        now = time.monotonic()
        expired = [rank for rank, deadline in self._deadlines.items() if self.hurried or now > deadline]
        for rank in expired:
            del self._deadlines[rank]
            self._given_up.add(rank)
        return expired
