"""Which format a file is of, by its name, and what every module of a format has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles

SUFFIXES = {
    "lines": (".jsonl", ".ndjson", ".jsonlist", ".jsonline", ".txt", ".text"),
    "gzip": tuple(f"{name}.gz" for name in (".jsonl", ".ndjson", ".json", ".txt", ".text")),
    "zstd": tuple(f"{name}.zst" for name in (".jsonl", ".ndjson", ".json", ".txt", ".text")),
    "parquet": (".parquet",),
    "tar": (".tar",),
    "whole": (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tiff", ".npy", ".wav", ".flac", ".mp3", ".mp4"),
}
"""Format -> endings of names, in lower case."""

_MODULES = {
    "lines": "lines",
    "gzip": "compressed",
    "zstd": "compressed",
    "parquet": "parquet",
    "tar": "tar",
    "whole": "single_file",
}
"""Format -> its module, which has `scan` and `reader`."""


class Scan(NamedTuple):
    """What was found in one file: where each sample begins and how long it is, the digest of the file's bytes, how many
    records are none, and for compressed files the places at which reading can begin (see index/layout.py)."""

    starts: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]
    digest: str
    skipped: int = 0
    points: npt.NDArray[np.uint64] = np.zeros((0, 2), np.uint64)


class RecordReader(Protocol):
    """Reads samples of the files of one format."""

    def record(self, file: Any, start: int, length: int) -> Any:
        """Read a record: bytes, or a dict where the format has fields. `file`: an IndexedFile."""


class SampleFormat(Protocol):
    """A module of a format."""

    scan: Callable[[SourceFile, Callable[[int], None]], Scan]
    reader: Callable[[SourceFiles, int], RecordReader]


_MIN_MEMORY_BYTES = 1 << 20
_SAMPLES_PER_BYTE = 4


def require_plausible_sample_count(samples: int, size: int) -> None:
    """Raise ValueError for more samples than a file of `size` bytes has, unless it was made to fill memory."""
    most = _MIN_MEMORY_BYTES + _SAMPLES_PER_BYTE * size
    if samples > most:
        raise ValueError(f"{samples:,} samples in {size:,} bytes, expected at most {most:,}")


def format_by_file_name(path: str) -> str | None:
    """Look up the format of a file by its name; None for a name that says nothing."""
    lower = path.lower()
    for name, endings in SUFFIXES.items():
        if lower.endswith(endings):
            return name
    return None


def import_format_module(format_name: str) -> Any:
    """Import the module of a format. Raises KeyError."""
    return import_module(f"hyperpod_kit.data.formats.{_MODULES[format_name]}")
