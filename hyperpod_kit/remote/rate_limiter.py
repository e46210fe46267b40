"""A token bucket: many threads, one rate, whoever waits the longest goes first."""

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_at = clock() - burst / rate

    def take(self) -> None:
        """Wait for a token. Its moment is settled at once, so that nobody is overtaken."""
        with self._lock:
            now = self._clock()
            # As if the last tokens had been taken no longer ago than it takes to fill the bucket.
            self._free_at = max(self._free_at, now - self._burst / self._rate) + 1 / self._rate
            left = self._free_at - now
        if left > 0:
            self._sleep(left)
