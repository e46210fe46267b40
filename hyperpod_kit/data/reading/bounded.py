"""A file of a mount that may hang: what is asked of it is asked by threads that are left behind then."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from hyperpod_kit.data.reading.local_file import LocalFile
from hyperpod_kit.system.bounded_thread import BoundedCalls, CallUnanswered

T = TypeVar("T")

REPLY_SECONDS = 30.0
"""Seconds in which a mount that works answers for a piece."""

PIECE_BYTES = 8 << 20
"""Bytes of one read: what a slow mount gives in time too."""


class BoundedFile:
    """See SourceFile: a file of a mount that may hang. Raises CallUnanswered when it does."""

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
        except CallUnanswered:
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
