"""Small ranges out of pieces of files that are in memory: a call to the kernel for each costs more than its bytes do.

A piece is what is read together: a block of the order. It is read when several ranges of it were asked for, and not for
the first call's: a start reads no more than its own samples. What is asked for without neighbours is read by itself. Of
what is known to come, pieces are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.numbers.deduplication import unique_with_counts
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFiles

SHORT_SAMPLE_BYTES = 4096
"""Bytes of a range up to which a call costs more than the bytes: it is cut out of a block that is in memory."""

PIECE_NUMBER_BITS = 44
"""Bits of a piece's number, beside that of its file."""

_MIN_TOUCHES = 3
"""Ranges of a piece after which it is read."""

_MAX_BYTES_PER_RANGE = 11_000
"""Bytes of pieces for each range that comes from them, beyond which ranges are read faster one by one."""

_SINGLE_RANGES = 100_000
"""Ranges that are read one by one before pieces are tried again."""

_MAX_TOUCHED_PIECES = 8192
MEMORY_BYTES = 128 << 20
"""Bytes of pieces at most: the 384 blocks of about 256 KiB that the default order reads side by side, and some of those
that follow them."""
_MIX_MEMORY_BYTES = 512 << 20
"""As many of all sets of a mix together."""


class CoalescedReads:
    """The pieces that this process has of its files, `memory` bytes at most."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._cuts = files.cuts
        self._most = 0
        if self._cuts is not None:
            self._most = min(memory, MEMORY_BYTES, _MIX_MEMORY_BYTES // files.among)
        self._pieces: dict[int, bytes] = {}
        self._held_bytes = 0
        self.carriage_returns = False
        """Whether any piece so far has one."""
        self._touched: dict[int, tuple[int, int]] = {}
        """(how often, in which call first) of pieces that are not there."""
        self._calls = 0
        self._read, self._given = 0, 0
        """Bytes of pieces, and ranges, since it was last looked whether the pieces are worth it."""
        self._alone = 0
        self._expected: set[int] = set()
        """Pieces of which several ranges come soon."""

    def ranges_or_empty_reading_frequent_pieces(
        self,
        file_by_number: Callable[[int], FileFacts],
        samples: Numbers,
        file_numbers: Numbers,
        starts: Numbers,
        lengths: Numbers,
    ) -> Sequence[bytes]:
        """Return the bytes of each range from the pieces in memory; empty where it is to be read by itself.

        Reads the pieces that were requested often. `file_by_number` gives the facts of the file of a number.

        Raises what SourceFiles.read raises.
        """
        if self._alone > 0 or not self._most or self._cuts is None:
            self._alone -= len(starts)
            return [b""] * len(starts)
        self._calls += 1
        keys = self._cuts.piece_keys(samples, file_numbers).tolist()
        if not self._pieces and not self._expected:
            # A start looks up nothing in the index but its own samples.
            for key in keys:
                self._count_request_and_is_frequent(key)
            return [b""] * len(starts)
        inside = starts - self._cuts.piece_start_offsets(samples, file_numbers)
        places = zip(map(self._pieces.get, keys), inside.tolist(), (inside + lengths).tolist())
        ranges = [piece[begin:end] if piece else b"" for piece, begin, end in places]
        self._given += len(ranges)
        if all(ranges):
            return ranges
        small = (lengths <= SHORT_SAMPLE_BYTES).tolist()
        for n, data in enumerate(ranges):
            if not data and small[n]:
                piece = self._pieces.get(keys[n]) or self._read_piece_if_expected_or_frequent(
                    keys[n], file_by_number(int(file_numbers[n])), int(samples[n])
                )
                begin = int(inside[n])
                ranges[n] = piece[begin : begin + int(lengths[n])] if piece else b""
        return ranges

    def _count_request_and_is_frequent(self, key: int) -> bool:
        """Count a request for a piece; whether it was asked for often enough to be read whole."""
        times, first = self._touched.get(key, (0, self._calls))
        if times + 1 >= _MIN_TOUCHES and first != self._calls:
            return True
        if len(self._touched) >= _MAX_TOUCHED_PIECES:
            del self._touched[next(iter(self._touched))]
        self._touched[key] = times + 1, first
        return False

    def _read_piece_if_expected_or_frequent(self, key: int, file: FileFacts, sample: int) -> bytes | None:
        """Read a piece that is expected or was requested often enough, and keep it; None where it is not read."""
        assert self._cuts is not None
        if file.path.startswith("s3://") or not (key in self._expected or self._count_request_and_is_frequent(key)):
            return None
        self._expected.discard(key)
        self._touched.pop(key, None)
        bounds = self._cuts.piece_range_if_ordered_and_small(sample, key >> PIECE_NUMBER_BITS)
        if bounds is None or bounds[1] - bounds[0] > self._most:
            return None
        begin, size = bounds[0], bounds[1] - bounds[0]
        piece = self._files.read(file, begin, size)
        if len(piece) < size:
            return None
        if self._held_bytes + size > self._most:
            self._evict_pieces_and_pause_if_inefficient(size)
        self._read += size
        self._held_bytes += size
        self.carriage_returns = self.carriage_returns or b"\r" in piece
        self._pieces[key] = piece
        return piece

    def set_expected_samples(self, samples: Numbers, file_numbers: Numbers, lengths: Numbers) -> None:
        """Note samples that come soon. Only what was expected last is kept in mind."""
        if self._cuts is None:
            return
        keys = self._cuts.piece_keys(samples, file_numbers)
        if int(lengths.max()) > SHORT_SAMPLE_BYTES:
            keys = keys[lengths <= SHORT_SAMPLE_BYTES]
        keys, _, counts = unique_with_counts(keys)
        self._expected = set(keys[counts >= _MIN_TOUCHES].tolist())

    def _evict_pieces_and_pause_if_inefficient(self, size: int) -> None:
        """Drop the pieces that were read first until there is room again."""
        room = max(size, self._most // 8)
        for key in list(self._pieces):
            if self._held_bytes + room <= self._most:
                break
            self._held_bytes -= len(self._pieces.pop(key))
        if self._read >= self._most:
            if self._given * _MAX_BYTES_PER_RANGE < self._read:
                self._alone = _SINGLE_RANGES
                self._pieces.clear()
                self._held_bytes = 0
            self._read, self._given = 0, 0
