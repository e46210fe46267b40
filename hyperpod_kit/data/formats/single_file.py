"""A file that is one sample, as an image is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats.lines import MAX_SAMPLE_BYTES
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Scan a file: one sample, none for an empty file."""
    if file.size > MAX_SAMPLE_BYTES:
        raise ValueError(f"{file.path} has {file.size} bytes, expected less than 4 GiB for one sample")
    pieces = digests.digests_of_pieces(file.read, file.size, advance)
    count = 1 if file.size else 0
    return Scan(
        np.zeros(count, np.uint64),
        np.full(count, file.size, np.uint32),
        digests.digest_of_file(pieces, file.size),
        skipped=1 - count,
    )


class SingleFileReader:
    """Reads whole files."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files

    def record(self, file: Any, start: int, length: int) -> bytes:
        """Read the file's bytes."""
        data = self._files.read(file, start, length)
        self._files.close_file(file.path)
        return data


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return SingleFileReader(files)
