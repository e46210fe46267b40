"""Who may call a Manager: the process that made it, and one of its threads at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hyperpod_kit.errors import CheckpointError


class CallerGuard:
    """`pid`: the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._holder = ""

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no child that was forked from it."""
        return os.getpid() == self.pid

    @contextmanager
    def exclusive(self, call: str) -> Iterator[None]:
        """Raises CheckpointError while another thread is in such a call: of two saves at once neither is an image of
        one moment."""
        thread = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise CheckpointError(
                f"{call} was called in thread {thread} while {self._holder} of the same Manager",
                hint="save and restore in one thread, the one that trains, or hold a lock of your own around both",
            )
        try:
            self._holder = f"thread {thread} is in {call}"
            yield
        finally:
            self._lock.release()
