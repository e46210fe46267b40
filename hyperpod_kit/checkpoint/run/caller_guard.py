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
    def is_creator_process(self) -> bool:
        """Return whether this is the process that made the guard, and no child forked from it."""
        return os.getpid() == self.pid

    @contextmanager
    def refuse_concurrent_calls(self, call_name: str) -> Iterator[None]:
        """Raise CheckpointError if another thread is inside such a block, else hold the lock for the
        block's time: of two saves at once neither is an image of one moment."""
        thread = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise CheckpointError(
                f"{call_name} was called in thread {thread} while {self._holder} of the same Manager",
                hint="save and restore in one thread, the one that trains, or hold your own lock around both",
            )
        try:
            self._holder = f"thread {thread} is in {call_name}"
            yield
        finally:
            self._lock.release()
