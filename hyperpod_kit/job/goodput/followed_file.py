"""Reads a file of lines while other processes append to it: each call reads only the lines that are new.

A file that was truncated, rotated, replaced or rewritten in its place is read from its beginning. An inode's number is
reused as soon as it is free, so the first and the last bytes that were read are compared too.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Any, Callable, List, NamedTuple, Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import files

LONGEST_LINE = 1 << 20
"""Most bytes of a line; a longer line is passed over."""

_PIECE = 1 << 18
_SAMPLE = 256
"""Bytes at both ends of the part that was read, by which a rewritten file is recognised."""


class NewLines(NamedTuple):
    """Decoded whole lines. `anew`: they are the first ones of the file, and the lines of earlier calls are void."""

    lines: List[Any]
    anew: bool


class FollowedFile:
    """One file by its name. `most`: bytes it may have.

    `decoded`: decodes a line without its end, None for one to leave out. It is called for each line at once, as the
    list of lines of a file of nothing but line ends would take eight times the file's size.
    """

    def __init__(self, path: str, most: int, decoded: Callable[[bytes], Any] = bytes) -> None:
        self._path, self._most, self._decoded = path, most, decoded
        self._forget()

    def _forget(self) -> None:
        self._identity: Tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = self._tail = b""
        self._in_long_line = False

    def read_new(self) -> NewLines:
        """Return the lines that were appended since the last call.

        Raises FileNotFoundError, Untrusted, OSError; after the first two nothing of the file counts as read.
        """
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
        if os.pread(descriptor, len(self._head), 0) != self._head:
            return False
        tail_at = self._offset - len(self._tail)
        return os.pread(descriptor, len(self._tail), tail_at) == self._tail

    def _read(self, descriptor: int, size: int) -> List[Any]:
        """Return the decoded lines up to the last whole one; the rest is still being written."""
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
