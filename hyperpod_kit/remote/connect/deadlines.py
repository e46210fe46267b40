"""Ends connections whose time is up, all by one thread: some waits of an ssh library have no end of their own."""

from __future__ import annotations

import heapq
import threading
import time
from contextlib import contextmanager
from typing import Callable, Iterator


class Deadline:
    """One connection's time. `expired`: whether it was ended because of it, or because everything was."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.expired = False
        self._end = end
        self._lock = threading.Lock()
        self._completed = False

    def expire(self) -> None:
        """End the connection, unless it is over already."""
        with self._lock:
            if self._completed:
                return
            self._completed = self.expired = True
        self._end()

    def complete(self) -> None:
        """Mark the connection as ended by itself, and drop what would have ended it."""
        with self._lock:
            self._completed = True
        self._end = _nothing


def _nothing() -> None:
    return None


class Deadlines:
    """All connections of one question to a fleet. `end_all` is for Ctrl-C: nobody waits for a node any more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._number = 0
        self._running = False
        self._ended = False

    @contextmanager
    def within(self, seconds: float, on_expiry: Callable[[], None]) -> Iterator[Deadline]:
        """Call `on_expiry` from another thread when the block takes longer than `seconds`, or at once after
        `end_all`."""
        deadline = Deadline(on_expiry)
        with self._changed:
            ended = self._ended
            self._number += 1
            heapq.heappush(self._due, (time.monotonic() + seconds, self._number, deadline))
            if not self._running:
                self._running = True
                threading.Thread(target=self._expire_due_deadlines, name="deadlines", daemon=True).start()
            self._changed.notify()
        if ended:
            deadline.expire()
        try:
            yield deadline
        finally:
            deadline.complete()

    def expire_present_and_later(self) -> None:
        """End every connection now, and each that begins later at once."""
        with self._changed:
            self._ended = True
            due, self._due = self._due, []
        for _, _, deadline in due:
            deadline.expire()

    def _expire_due_deadlines(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._running = False
                    return
                remaining = self._due[0][0] - time.monotonic()
                if remaining > 0:
                    self._changed.wait(remaining)
                    continue
                deadline = heapq.heappop(self._due)[2]
            deadline.expire()
