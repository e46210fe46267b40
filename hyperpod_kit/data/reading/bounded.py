"""Calls that a dead mount may never answer, made by threads that are left behind then: whoever asked goes on."""

from __future__ import annotations

import errno
import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hyperpod_kit.data.reading.local_file import LocalFile

T = TypeVar("T")

REPLY_SECONDS = 30.0
"""Seconds in which a mount that works answers for a piece."""

PIECE_BYTES = 8 << 20
"""Bytes of one read: what a slow mount gives in time too."""

_MAX_THREADS = 24
"""Threads of one mount. When all of them wait in the kernel, no more are sent."""


class ReadUnanswered(TimeoutError):
    """Nothing came back in time; what was asked may still wait in the kernel."""


class BoundedCall(Generic[T]):
    """A call under way. `late` is called with a result that comes after nobody waits any more."""

    def __init__(self, function: Callable[[], T], late: Callable[[T], object] | None) -> None:
        self._function = function
        self._on_late_result = late
        self._reply: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._given_up = False
        self._answered = False

    def execute(self) -> None:
        """Make the call, in a thread that may be left behind."""
        with self._lock:
            if self._given_up:
                return
        value, error = None, None
        try:
            value = self._function()
        except BaseException as err:
            error = err
        with self._lock:
            self._answered = True
            late = self._given_up
        if not late:
            self._reply.put((value, error))
        elif self._on_late_result is not None and error is None:
            self._on_late_result(value)

    def wait_for_result(self, timeout: float) -> T:
        """Wait for the call's result. Raises what it raised, ReadUnanswered when it does not come."""
        try:
            value, error = self._reply.get(timeout=timeout)
        except queue.Empty:
            with self._lock:
                self._given_up = not self._answered
            if self._given_up:
                raise ReadUnanswered(errno.ETIMEDOUT, f"no answer for {timeout:g} s") from None
            value, error = self._reply.get()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


class BoundedCalls:
    """The calls to one mount, each for `seconds` at most. Safe for threads, for one process."""

    def __init__(self, seconds: float = REPLY_SECONDS) -> None:
        self.seconds = seconds
        self._waiting: queue.SimpleQueue[BoundedCall[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._under_way = 0

    def start_call(
        self, function: Callable[[], T], on_late_result: Callable[[T], object] | None = None
    ) -> BoundedCall[T]:
        """Start a call without waiting for it."""
        call = BoundedCall(function, on_late_result)
        with self._lock:
            self._under_way += 1
            if self._under_way > self._threads and self._threads < _MAX_THREADS:
                self._threads += 1
                # A daemon: the end of the program must not wait for a mount.
                threading.Thread(target=self._execute_calls_forever, name="hpk-data-read", daemon=True).start()
        self._waiting.put(call)
        return call

    def call(self, function: Callable[[], T], on_late_result: Callable[[T], object] | None = None) -> T:
        """Call `function()` and return what it returns.

        Raises what it raises, ReadUnanswered when it does not answer.
        """
        return self.start_call(function, on_late_result).wait_for_result(self.seconds)

    def _execute_calls_forever(self) -> None:
        while True:
            call = self._waiting.get()
            call.execute()
            del call  # what was read is not kept for the next one
            with self._lock:
                self._under_way -= 1


class BoundedFile:
    """See SourceFile: a file of a mount that may hang. Raises ReadUnanswered when it does."""

    def __init__(self, path: str, calls: BoundedCalls) -> None:
        self.path = path
        self._calls = calls
        self._file = calls.call(lambda: LocalFile(path), on_late_result=LocalFile.close)
        self.size = self._file.size
        self.mtime_ns = self._file.mtime_ns
        self._hangs = False

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        parts = []
        while True:
            piece = min(length, PIECE_BYTES)
            part = self._call_in_bounded_time(functools.partial(self._file.read, offset, piece))
            parts.append(part)
            offset, length = offset + piece, length - piece
            if length <= 0 or len(part) < piece:
                return part if len(parts) == 1 else b"".join(parts)

    def read_ranges_in_one_call(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several small ranges (offset, length) by one call."""
        return self._call_in_bounded_time(lambda: [self._file.read(offset, length) for offset, length in ranges])

    def stat_fingerprint(self) -> tuple[int, int]:
        """See LocalFile."""
        return self._call_in_bounded_time(self._file.stat_fingerprint)

    def _call_in_bounded_time(self, function: Callable[[], T]) -> T:
        file = self._file
        try:
            return self._calls.call(function, on_late_result=lambda _: file.close())
        except ReadUnanswered:
            # Closing it would wait as well: the thread that was left behind does it.
            self._hangs = True
            raise

    def prefetch_range(self, offset: int, length: int) -> None:
        """Have the kernel fetch a range while something else is done."""
        self._calls.start_call(lambda: self._file.prefetch_range(offset, length))

    def close(self) -> None:
        """See SourceFile."""
        if not self._hangs:
            self._calls.start_call(self._file.close)
