"""How far the reading of a checkpoint is: logged now and then, and given to a caller's function.

`Manager.restore` and `load_state` take such a function as `progress`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from hyperpod_kit.renamed import renamed_fields

CALL_INTERVAL_S = 0.5
"""Seconds between two words to who asked."""
_LOG_INTERVAL_S = 5.0
_MB = 1_000_000

log = logging.getLogger("hyperpod_kit.checkpoint")


@renamed_fields(attempt="checkpoint_id", done="bytes_read", whole="bytes_total")
class RestoreProgress(NamedTuple):
    """How far this rank is with reading a checkpoint.

    What other ranks read for this one is not counted. It begins anew with each tier and each checkpoint that is tried.

    Attributes:
        checkpoint_id: The name of the checkpoint.
        bytes_read: How many bytes are proved and in their place.
        bytes_total: How many bytes this rank reads.

    Example:
        With a `manager` and a `state`:

            from hyperpod_kit.checkpoint import RestoreProgress

            def show(progress: RestoreProgress) -> None:
                print(f"{progress.checkpoint_id}: {progress.bytes_read} of {progress.bytes_total} bytes")

            manager.restore(state, progress=show)
    """

    checkpoint_id: str
    bytes_read: int
    bytes_total: int


ProgressCallback = Callable[[RestoreProgress], None]


def callback_with_activity(moved: Callable[[], None], callback: ProgressCallback | None) -> ProgressCallback:
    """Return a callback that calls `moved`, then `callback` if there is one; a `callback` that raises
    once is not called again, `moved` is."""
    callbacks = []
    if callback is not None:
        callbacks = [callback]

    def notify(at: RestoreProgress) -> None:
        moved()
        try:
            for call in callbacks:
                call(at)
        except Exception:
            callbacks.clear()
            log.exception("restore: the progress callback failed and is not called again")

    return notify


def ignore_bytes(count: int) -> None:
    """Do nothing with the count of bytes that were read."""


class ReadBytes:
    """Counts the bytes that a restore has read; called with each chunk's, by any thread.

    `callback` is called every half second at most, by one thread at a time, and once more by `end`. What it raises is
    logged: it says nothing about the checkpoint, and other ranks wait for this one. It is not called again then.
    """

    def __init__(
        self, callback: ProgressCallback | None, level: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`level`: that of the lines in the log."""
        self._callback, self._level, self._clock = callback, level, clock
        self._lock, self._report_lock = threading.Lock(), threading.Lock()
        self._last_call = self._logged = clock()
        self._at: RestoreProgress | None = None

    def begin(self, checkpoint_id: str, total: int) -> None:
        """Start to count anew: `total` bytes of this checkpoint are to be read."""
        with self._lock:
            self._at = RestoreProgress(checkpoint_id, 0, total)

    def __call__(self, count: int) -> None:
        with self._lock:
            assert self._at is not None, "read before begin"
            # Chunks that did not arrive from another rank are read besides.
            self._at = self._at._replace(bytes_read=min(self._at.bytes_read + count, self._at.bytes_total))
            if self._clock() - self._last_call < CALL_INTERVAL_S:
                return
            self._last_call = self._clock()
        self._report(wait=False)

    def report_complete(self) -> None:
        """Report that all bytes are read; nothing where none was to be read."""
        if self._at is not None:
            self._at = self._at._replace(bytes_read=self._at.bytes_total)
            self._report(wait=True)

    def _report(self, *, wait: bool) -> None:
        if not self._report_lock.acquire(blocking=wait):
            return  # somebody is still being told
        try:
            at = self._at
            assert at is not None
            if self._clock() - self._logged >= _LOG_INTERVAL_S:
                self._logged = self._clock()
                log.log(
                    self._level,
                    "restore: %d of %d MB of %s",
                    at.bytes_read // _MB,
                    at.bytes_total // _MB,
                    at.checkpoint_id,
                )
            if self._callback is not None:
                self._callback(at)
        except Exception:
            self._callback = None
            log.exception("restore: the progress callback failed and is not called again")
        finally:
            self._report_lock.release()
