"""A token bucket: many threads, one rate, whoever waits the longest goes first.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import threading
import time
from typing import Callable


class TokenBucket:
    """`rate`: tokens a second; `burst`: how many may be taken at once after a pause."""

    def __init__(
        self,
        rate: float,
        burst: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._next = clock() - self._seconds_to_fill

    @property
    def _seconds_to_fill(self) -> float:
        """Seconds in which an empty bucket has all tokens but the one that is taken next."""
        return (self._burst - 1) / self._rate

    def wait_for_one_token_and_charge(self, count: float = 1) -> None:
        """Wait for a token, and take `count`: those who come next wait for what is owed.

        The moment is settled at once, so that nobody is overtaken.
        """
        with self._lock:
            now = self._clock()
            # As if the last tokens had been taken no longer ago than it takes to fill the bucket.
            start_at = max(self._next, now - self._seconds_to_fill)
            self._next = start_at + count / self._rate
        if start_at > now:
            self._sleep(start_at - now)
