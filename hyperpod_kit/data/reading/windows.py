"""Small ranges out of pieces of files that are in memory: a call to the kernel for each costs more than its bytes do.

A piece is read when several ranges of it were asked for, and not for the first call's: a start reads no more than its
own samples. What is asked for without neighbours is read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFiles

_BITS = 18
_SIZE = 1 << _BITS
SMALL = 4096
"""Bytes of a range up to which a call costs more than the bytes."""

_TOUCHES = 3
"""Ranges of a piece after which it is read."""

_WORTH = 24
"""Ranges that must come from a piece, or they are read faster one by one."""

_ALONE = 100_000
"""Ranges that are read one by one before pieces are tried again."""

_NOTED = 8192
MEMORY = 128 << 20
"""Bytes of pieces at most: the 48 blocks of about 1 MiB that a shuffled order reads side by side, and their ends."""


class ReadWindows:
    """The pieces that this process has of its files, `memory` bytes at most."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._most = min(memory, MEMORY) // _SIZE
        self._pieces: dict[int, bytes] = {}
        self._touched: dict[int, tuple[int, int]] = {}
        """(how often, in which call first) of pieces that are not there."""
        self._calls = 0
        self._read, self._given = 0, 0
        """Pieces, and ranges, since it was last looked whether the pieces are worth it."""
        self._alone = 0

    def find(self, files: Sequence[FileFacts], numbers: Numbers, starts: Numbers, lengths: Numbers) -> list[bytes]:
        """For each range its bytes, or none where it is to be read by itself. Raises what SourceFiles.read raises."""
        if self._alone > 0 or not self._most:
            self._alone -= len(files)
            return [b""] * len(files)
        self._calls += 1
        keys = ((numbers << 44) | (starts >> _BITS)).tolist()
        inside = starts & (_SIZE - 1)
        ends = (inside + lengths).tolist()
        pieces = self._pieces
        found = []
        for n, (key, begin, end) in enumerate(zip(keys, inside.tolist(), ends, strict=True)):
            piece = pieces.get(key)
            if piece is None and end - begin <= SMALL:
                piece = self._touch(key, files[n])
            found.append(piece[begin:end] if piece is not None and end <= len(piece) else b"")
        self._given += len(found)
        return found

    def _touch(self, key: int, file: FileFacts) -> bytes | None:
        """A piece that was asked for often enough."""
        times, first = self._touched.get(key, (0, self._calls))
        if times + 1 < _TOUCHES or first == self._calls or file.path.startswith("s3://"):
            if len(self._touched) >= _NOTED:
                del self._touched[next(iter(self._touched))]
            self._touched[key] = times + 1, first
            return None
        del self._touched[key]
        at = (key & ((1 << 44) - 1)) << _BITS
        if len(self._pieces) >= self._most:
            self._let_go()
        self._read += 1
        piece = self._pieces[key] = self._files.read(file, at, min(_SIZE, file.size - at))
        return piece

    def _let_go(self) -> None:
        """Of those that were read first."""
        for key in list(self._pieces)[: max(1, self._most // 8)]:
            del self._pieces[key]
        if self._read >= self._most:
            if self._given < self._read * _WORTH:
                self._alone = _ALONE
                self._pieces.clear()
            self._read, self._given = 0, 0
