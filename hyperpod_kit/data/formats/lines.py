"""Lines of a text file: jsonl, plain text. A line ends with \\n or \\r\\n, the last one may end with the file; an empty
line is no sample, nor is one of blanks alone where lines are JSON."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.local_file import LocalFile
from hyperpod_kit.data.reading.ranges import RangeReader
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles
from hyperpod_kit.errors import ChangedFile

MAX_SAMPLE_BYTES = (1 << 32) - 1
"""Bytes of a sample."""
MAX_BLANK_BYTES = 16
"""Bytes of a line that is looked at for blanks."""
_SPAN_BITS = 20
MAX_LINE_BYTES = 128 << 20
"""Bytes of a line: a sparse file of no line's end takes no room on the disk."""


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Scan every line of a file. Raises ChangedFile, OSError, and ValueError for a line that is too long."""

    pieces = find_newlines_and_digest_pieces(file, advance)
    size = sum(piece.size for piece in pieces)
    if size != file.size:
        raise ChangedFile(
            f"{file.path}: {size} bytes were read, expected {file.size}; check that no process is writing it"
        )
    ends = (
        np.concatenate([np.zeros(0, np.int64), *(piece.ends for piece in pieces)])
        if len(pieces) != 1
        else pieces[0].ends
    )
    if size and (not ends.size or ends[-1] != size - 1):
        ends = np.append(ends, size)
    starts, lengths = line_spans_from_ends(ends)
    full = lengths > 0
    for at in np.flatnonzero(lengths == 1):
        full[at] = file.read(int(starts[at]), 1) != b"\r"
    if has_json_name(file.path):
        _unmark_blank_lines(file, starts, lengths, full)
    require_line_lengths_in_bounds(lengths)
    return Scan(
        starts[full].astype(np.uint64),
        lengths[full].astype(np.uint32),
        digests.digest_of_file([piece.digest for piece in pieces], size),
    )


@functools.lru_cache(4096)
def has_json_name(path: str) -> bool:
    """Whether a file's name is that of a JSON file."""
    name = path.rpartition("/")[2].lower()
    return ".json" in name or ".ndjson" in name


def _unmark_blank_lines(
    file: SourceFile, starts: Numbers, lengths: Numbers, sample_mask: npt.NDArray[np.bool_]
) -> None:
    """Clear `sample_mask` for short lines of blanks alone. Lines that are near each other are read at once."""
    short = np.flatnonzero(sample_mask & (lengths <= MAX_BLANK_BYTES))
    for some in np.split(short, np.flatnonzero(np.diff(starts[short] >> _SPAN_BITS)) + 1):
        if not some.size:
            continue
        begin = int(starts[some[0]])
        data = file.read(begin, int(starts[some[-1]] + lengths[some[-1]]) - begin)
        for at in some.tolist():
            offset = int(starts[at]) - begin
            sample_mask[at] = bool(data[offset : offset + int(lengths[at])].strip())


def require_line_lengths_in_bounds(lengths: Any) -> None:
    """Raise ValueError if a line is longer than a reader allows."""
    longest = int(lengths.max(initial=0))
    if longest > MAX_LINE_BYTES:
        raise ValueError(f"a line of {longest:,} bytes, expected at most {MAX_LINE_BYTES:,}")


def line_spans_from_ends(ends: Any) -> tuple[Any, Any]:
    """Compute (starts, lengths) of lines from the places of their ends."""
    starts = np.empty_like(ends)
    if ends.size:
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    return starts, ends - starts


class LineReader(RangeReader):
    """Reads single lines by ranges."""

    def records(
        self,
        file_by_number: Callable[[int], Any],
        samples: Numbers,
        file_numbers: Numbers,
        starts: Numbers,
        lengths: Numbers,
    ) -> Iterable[bytes]:
        """Read the bytes of several lines, each without its end; `file_by_number` gives the entry of a file.

        Long ones are read while the caller goes through them.
        """
        lines = self.windows.ranges_or_empty_reading_frequent_pieces(
            file_by_number, samples, file_numbers, starts, lengths
        )
        if not all(lines):
            return _strip_carriage_returns(
                self.fill_in_missing_ranges(lines, file_by_number, file_numbers, starts, lengths)
            )
        if self.windows.carriage_returns:
            return _strip_carriage_returns(lines)
        return lines

    def record(self, file: Any, start: int, length: int) -> bytes:
        """Read the bytes of a line without its end."""
        return next(_strip_carriage_returns([self.read_range(file, start, length)]))


def _strip_carriage_returns(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Cut off the first half of \\r\\n."""
    return (data[:-1] if data[-1:] == b"\r" else data for data in lines)


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return LineReader(files, memory)


# Where the lines of a file end, and the digests of its pieces, at the speed of the disk.

_STREAMS = 3
"""Parts of a file that are read at a time, each from its beginning to its end by a descriptor of its own: one stream
does not keep a disk busy, and two that share a descriptor disturb its read-ahead."""
_STEP_BYTES = 1 << 20
"""Bytes that are read and searched at a time: they are still in the processor's cache when they are searched."""
_NEWLINE = np.uint8(10)


class SearchedPiece(NamedTuple):
    """A piece of a file: where lines end in it, its digest, how long it is."""

    ends: npt.NDArray[np.int64]
    digest: bytes
    size: int


def find_newlines_and_digest_pieces(file: SourceFile, advance: Callable[[int], None]) -> list[SearchedPiece]:
    """Return the pieces of a file in order, each with its line ends and digest. Raises ChangedFile, OSError."""
    if not file.size:
        return []
    if file.size <= min(_STEP_BYTES, digests.PIECE_BYTES):
        return [_read_and_search_piece(file, 0, advance)]
    places = range(0, file.size, digests.PIECE_BYTES)
    if not isinstance(file, LocalFile):
        with ThreadPoolExecutor(_STREAMS) as pool:
            return list(pool.map(lambda at: _read_and_search_piece(file, at, advance), places))
    if len(places) < 2 * _STREAMS:
        return _search_pieces(file, places, advance)
    each = -(-len(places) // _STREAMS)
    with ThreadPoolExecutor(_STREAMS) as pool:
        parts = [places[first : first + each] for first in range(0, len(places), each)]
        results = pool.map(lambda part: _reopen_and_search_pieces(file, part, advance), parts)
        return [piece for pieces in results for piece in pieces]


def _read_and_search_piece(file: SourceFile, at: int, advance: Callable[[int], None]) -> SearchedPiece:
    data = file.read(at, min(digests.PIECE_BYTES, file.size - at))
    advance(len(data))
    ends = (np.frombuffer(data, np.uint8) == _NEWLINE).nonzero()[0]
    if at:
        ends = ends + at
    return SearchedPiece(ends, digests.digest_of_piece(data), len(data))


def _reopen_and_search_pieces(file: LocalFile, places: range, advance: Callable[[int], None]) -> list[SearchedPiece]:
    with contextlib.closing(LocalFile(file.path)) as again:
        if (again.size, again.mtime_ns) != (file.size, file.mtime_ns):
            raise ChangedFile(f"{file.path} changed while it was read; check that no process is writing it")
        return _search_pieces(again, places, advance)


def _search_pieces(file: LocalFile, places: range, advance: Callable[[int], None]) -> list[SearchedPiece]:
    """Search pieces one after another, in the same memory: new memory for each costs as much as the search in it."""
    buffer = np.empty(min(digests.PIECE_BYTES, file.size), np.uint8)
    mask_buffer = np.empty(min(_STEP_BYTES, len(buffer)), bool)
    pieces = []
    for at in places:
        ends, size = [np.zeros(0, np.int64)], 0
        while size < len(buffer):
            step = buffer[size : size + _STEP_BYTES]
            count = file.read_into(step.data, at + size)
            if not count:
                break
            mask = np.equal(step[:count], _NEWLINE, out=mask_buffer[:count])
            ends.append(np.flatnonzero(mask) + (at + size))
            size += count
        pieces.append(SearchedPiece(np.concatenate(ends), digests.digest_of_piece(buffer[:size].data), size))
        advance(size)
    return pieces
