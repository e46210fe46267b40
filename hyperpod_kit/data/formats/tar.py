"""Samples in a tar: neighbouring files whose names are equal up to the first dot are one, as webdataset has them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import digests, lines
from hyperpod_kit.data.formats.ranged_file import RangedFile
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles

_BLOCK = 512


def split(name: str) -> tuple[str, str]:
    """(key, ending) of a name: the key goes up to the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return folder + slash + stem, ending


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Every sample. Raises ValueError for what is no tar or ends in the middle, OSError."""
    pieces = digests.of_pieces(file.read, file.size, advance)
    starts: list[int] = []
    ends: list[int] = []
    last: str | None = None
    try:
        with tarfile.open(fileobj=RangedFile(file.read, file.size), mode="r:") as archive:
            before = 0
            for member in archive:
                # What comes before a header (of a long name, say) belongs to it.
                begin = before
                before = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                if not member.isfile():
                    last = None
                    continue
                if before > file.size:
                    raise ValueError(f"{member.name} is cut off")
                key, _ = split(member.name)
                if key == last:
                    ends[-1] = before
                else:
                    starts.append(begin)
                    ends.append(before)
                last = key
    except tarfile.TarError as err:
        raise ValueError(str(err)) from None
    lengths = np.array(ends, np.int64) - np.array(starts, np.int64)
    if lengths.size and int(lengths.max()) > lines.LONGEST:
        raise ValueError(f"a sample of {int(lengths.max())} bytes, expected less than 4 GiB")
    return Scan(np.array(starts, np.uint64), lengths.astype(np.uint32), digests.of_file(pieces, file.size))


class TarReader:
    """One sample by one range: a piece of a tar is a tar."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files

    def record(self, file: Any, start: int, length: int) -> dict[str, Any]:
        """Ending -> bytes, and `__key__`."""
        data = self._files.read(file, start, length)
        found: dict[str, Any] = {}
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.isfile():
                    key, ending = split(member.name)
                    part = archive.extractfile(member)
                    assert part is not None
                    found["__key__"], found[ending] = key, part.read()
        return found


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return TarReader(files)
