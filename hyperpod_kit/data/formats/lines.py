"""Lines of a text file: jsonl, plain text. A line ends with \\n or \\r\\n, the last one may end with the file; an empty
line is no sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import digests, newlines
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles

LONGEST = (1 << 32) - 1
_AHEAD = 1 << 20
_REMEMBERED = 4096


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Every line of a file. Raises OSError, and ValueError for a line of 4 GiB."""

    pieces = newlines.search(file, advance)
    size = sum(one.size for one in pieces)
    if size != file.size:
        raise OSError(5, f"{size} bytes were read, expected {file.size}: is it being written?", file.path)
    ends = np.concatenate([one.ends for one in pieces]) if pieces else np.zeros(0, np.int64)
    if size and (not ends.size or ends[-1] != size - 1):
        ends = np.append(ends, size)
    starts, lengths = between(ends)
    full = lengths > 0
    for at in np.flatnonzero(lengths == 1):
        full[at] = file.read(int(starts[at]), 1) != b"\r"
    if lengths.size and int(lengths.max()) > LONGEST:
        raise ValueError(f"{file.path}: a line of {int(lengths.max())} bytes, expected less than 4 GiB")
    return Scan(
        starts[full].astype(np.uint64),
        lengths[full].astype(np.uint32),
        digests.of_file([one.digest for one in pieces], size),
    )


def between(ends: Any) -> tuple[Any, Any]:
    """(starts, lengths) of lines by the places of their ends."""
    starts = np.empty_like(ends)
    if ends.size:
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    return starts, ends - starts


class LineReader:
    """Single lines by ranges, and a hint for what lies around them."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._hinted: dict[tuple[str, int], None] = {}

    def record(self, file: Any, start: int, length: int) -> bytes:
        """The bytes of a line without its end."""
        around = (file.path, start // _AHEAD)
        if around not in self._hinted and not file.path.startswith("s3://"):
            # Samples of a block come soon and in another order, which no read-ahead of the kernel would guess.
            self._files.will_need(file, around[1] * _AHEAD, _AHEAD + length)
            self._hinted[around] = None
            if len(self._hinted) > _REMEMBERED:
                del self._hinted[next(iter(self._hinted))]
        data = self._files.read(file, start, length)
        return data[:-1] if data[-1:] == b"\r" else data


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return LineReader(files, memory)
