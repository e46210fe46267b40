"""Lines of a text file: jsonl, plain text. A line ends with \\n or \\r\\n, the last one may end with the file; an empty
line is no sample, nor is one of blanks alone where lines are JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.formats import digests, newlines
from hyperpod_kit.data.formats.table import RecordReader, Scan
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

    pieces = newlines.find_newlines_and_digest_pieces(file, advance)
    size = sum(piece.size for piece in pieces)
    if size != file.size:
        raise ChangedFile(f"{file.path}: {size} bytes were read, expected {file.size}: is it being written?")
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
