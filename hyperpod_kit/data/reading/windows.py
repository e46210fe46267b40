"""Small ranges out of pieces of files that are in memory: a call to the kernel for each costs more than its bytes do.

A piece is read when several ranges of it were asked for, and not for the first call's: a start reads no more than its
own samples. What is asked for without neighbours is read by itself. Of what is known to come, pieces are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.distinct import described
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFiles

_BITS = 18
_SIZE = 1 << _BITS
SMALL = 4096
"""Bytes of a range up to which a call costs more than the bytes. A piece has so many of the next one too, so that a
range that begins in it ends in it."""

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
        self.carriage_returns = False
        """Whether any piece so far has one."""
        self._touched: dict[int, tuple[int, int]] = {}
        """(how often, in which call first) of pieces that are not there."""
        self._calls = 0
        self._read, self._given = 0, 0
        """Pieces, and ranges, since it was last looked whether the pieces are worth it."""
        self._alone = 0
        self._expected: set[int] = set()
        """Pieces of which several ranges come soon."""

    def find(
        self, file: Callable[[int], FileFacts], numbers: Numbers, starts: Numbers, lengths: Numbers
    ) -> Sequence[bytes]:
        """For each range its bytes, or none where it is to be read by itself. `file` gives the one of a number.

        Raises what SourceFiles.read raises."""
        if self._alone > 0 or not self._most:
            self._alone -= len(starts)
            return [b""] * len(starts)
        self._calls += 1
        keys = ((numbers << 44) | (starts >> _BITS)).tolist()
        inside = starts & (_SIZE - 1)
        small = (lengths <= SMALL).tolist()
        places = zip(map(self._pieces.get, keys), inside.tolist(), (inside + lengths).tolist())
        if all(small):
            found = [piece[begin:end] if piece else b"" for piece, begin, end in places]
        else:
            found = [piece[begin:end] if piece and end <= len(piece) else b"" for piece, begin, end in places]
        self._given += len(found)
        if all(found):
            return found
        for n, data in enumerate(found):
            if not data and small[n]:
                piece = self._pieces.get(keys[n]) or self._touch(keys[n], file(keys[n] >> 44))
                begin = int(inside[n])
                found[n] = piece[begin : begin + int(lengths[n])] if piece else b""
        return found

    def _touch(self, key: int, file: FileFacts) -> bytes | None:
        """A piece that was asked for often enough, whole."""
        times, first = self._touched.get(key, (0, self._calls))
        often = times + 1 >= _TOUCHES and first != self._calls
        if file.path.startswith("s3://") or not (often or key in self._expected):
            if len(self._touched) >= _NOTED:
                del self._touched[next(iter(self._touched))]
            self._touched[key] = times + 1, first
            return None
        self._expected.discard(key)
        self._touched.pop(key, None)
        at = (key & ((1 << 44) - 1)) << _BITS
        size = min(_SIZE + SMALL, file.size - at)
        piece = self._files.read(file, at, size)
        if len(piece) < size:
            return None
        if len(self._pieces) >= self._most:
            self._let_go()
        self._read += 1
        self.carriage_returns = self.carriage_returns or b"\r" in piece
        self._pieces[key] = piece
        return piece

    def expect(self, numbers: Numbers, starts: Numbers, lengths: Numbers) -> None:
        """These ranges come soon. Only what was expected last is kept in mind."""
        keys = (numbers << 44) | (starts >> _BITS)
        keys, _, counts = described(keys if int(lengths.max()) <= SMALL else keys[lengths <= SMALL])
        self._expected = set(keys[counts >= _TOUCHES].tolist())

    def _let_go(self) -> None:
        """Of those that were read first."""
        for key in list(self._pieces)[: max(1, self._most // 8)]:
            del self._pieces[key]
        if self._read >= self._most:
            if self._given < self._read * _WORTH:
                self._alone = _ALONE
                self._pieces.clear()
            self._read, self._given = 0, 0
