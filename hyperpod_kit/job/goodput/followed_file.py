"""A file of lines to which others append, read as it grows: each look reads what is new, and not what was read before.

A file that was truncated, rotated, replaced, or written anew in its place is another one, and read from its beginning.
An inode's number is given out again as soon as it is free, so the first and the last bytes that were read count too.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Any, Callable, List, NamedTuple, Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import files

LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is passed over."""

_PIECE = 1 << 18
_SAMPLE = 256
"""Bytes at both ends of what was read that tell whether it is still there."""


class NewLines(NamedTuple):
    """What whole lines say, without their ends. `anew`: they are the file's first, and what was read of it before is no
    more."""

    lines: List[Any]
    anew: bool


class FollowedFile:
    """One file by its name. `most`: bytes it may have. `decoded`: what a line says, None for one that is left out: at
    once, as the lines of a file of nothing but ends of lines take eight times its size."""

    def __init__(self, path: str, most: int, decoded: Callable[[bytes], Any] = bytes) -> None:
        self._path, self._most, self._decoded = path, most, decoded
        self._forget()

    def _forget(self) -> None:
        self._identity: Tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = self._tail = b""
        self._in_long_line = False

    def read_new(self) -> NewLines:
        """What was appended since it was last read. Raises FileNotFoundError, Untrusted, OSError; after the first two
        nothing of the file counts as read."""
        try:
            descriptor, facts = files.open_regular_file_to_read(self._path)
        except (FileNotFoundError, Untrusted):
            self._forget()
            raise
        try:
            if facts.st_size > self._most:
                self._forget()
                raise files.too_large_error(self._path, facts.st_size, self._most)
            identity = (facts.st_dev, facts.st_ino)
            anew = not self._is_the_same(descriptor, identity, facts.st_size)
            if anew:
                self._forget()
                self._identity = identity
            return NewLines(self._read(descriptor, facts.st_size), anew)
        finally:
            os.close(descriptor)

    def _is_the_same(self, descriptor: int, identity: Tuple[int, int], size: int) -> bool:
        if identity != self._identity or size < self._offset:
            return False
        tail_at = self._offset - len(self._tail)
        return (
            os.pread(descriptor, len(self._head), 0) == self._head
            and os.pread(descriptor, len(self._tail), tail_at) == self._tail
        )

    def _read(self, descriptor: int, size: int) -> List[Any]:
        """Up to the last whole line; what follows it is still being written."""
        lines: List[Any] = []
        pending = b""
        at = self._offset
        while at < size:
            piece = os.pread(descriptor, min(_PIECE, size - at), at)
            if not piece:
                break
            at += len(piece)
            *complete, pending = (pending + piece).split(b"\n")
            if self._in_long_line and complete:
                self._in_long_line = False
                del complete[0]
            decoded_lines = (self._decoded(line) for line in complete if 0 < len(line) <= LONGEST_LINE)
            lines += (decoded_line for decoded_line in decoded_lines if decoded_line is not None)
            if self._in_long_line or len(pending) > LONGEST_LINE:
                self._in_long_line = True
                pending = b""
        self._offset = at - len(pending)
        self._head = os.pread(descriptor, min(_SAMPLE, self._offset), 0)
        self._tail = os.pread(descriptor, min(_SAMPLE, self._offset), max(0, self._offset - _SAMPLE))
        return lines
