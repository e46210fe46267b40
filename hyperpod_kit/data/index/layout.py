"""An index on disk: a directory of numpy arrays, and `index.json`, which is written last.

files.npy     one row a file: where its path is in paths.bin, size, mtime, digest, its samples
starts.npy    u64 a sample: where it begins in the file (or in its plain text, or its row)
lengths.npy   u32 a sample
points.npy    (u64, u64) for compressed files: places at which reading can begin, in the file and in its plain text
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.distinct import distinct
from hyperpod_kit.errors import DataError, NoData
from hyperpod_kit.untrusted import parse

FORMAT = "hpk-data/1"
HEADER = "index.json"
_LARGEST = 64 << 20
_FEW = 4096
_PAGE_BITS = 12

FILE = np.dtype(
    [
        ("source", "<u4"),
        ("path_at", "<u8"),
        ("path_length", "<u4"),
        ("format", "<u2"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("digest", "S32"),
        ("first", "<u8"),
        ("samples", "<u8"),
        ("skipped", "<u8"),
        ("first_point", "<u8"),
        ("points", "<u8"),
    ]
)
"""`digest`: 32 hexadecimal digits. `mtime_ns`: of an object the time of its last change."""

POINT = np.dtype([("raw", "<u8"), ("plain", "<u8")])


@dataclass(frozen=True)
class IndexedFile:
    """One file of an index. `path`: whole, below its source as that is now."""

    number: int
    path: str
    format: str
    size: int
    mtime_ns: int
    digest: str
    first: int
    samples: int
    skipped: int
    points: npt.NDArray[Any]


@dataclass(frozen=True)
class SampleIndex:
    """The index in `folder`. Cheap to send to another process: arrays are mapped again there."""

    folder: str
    sources: tuple[str, ...]
    formats: tuple[str, ...]
    samples: int
    bytes: int
    skipped: int
    digest: str
    data: str
    """Digest of what the samples are, wherever their files lie: paths below the sources, content, count."""
    _arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, sources: tuple[str, ...] | None = None) -> SampleIndex:
        """The index in a directory. `sources`: where its sources lie now, when they were moved, in the same order.

        Raises DataError when there is none, or one that is not whole.
        """
        place = os.fspath(folder)
        try:
            head = parse.json_object(Path(place, HEADER).read_bytes(), _LARGEST)
        except FileNotFoundError:
            raise NoData(f"there is no index in {place}", hint=f"hyperpod-kit data index SRC --out {place}") from None
        except ValueError as err:
            raise DataError(f"{place}/{HEADER} is damaged: {err}", hint="hyperpod-kit data index") from None
        if head.get("format") != FORMAT:
            raise DataError(f"{place} is of format {head.get('format')!r}, expected {FORMAT!r}")
        if sources is not None and len(sources) != len(head["sources"]):
            raise DataError(f"{place} has {len(head['sources'])} sources, {len(sources)} were given")
        return cls(
            place,
            tuple(sources or head["sources"]),
            tuple(head["formats"]),
            int(head["samples"]),
            int(head["bytes"]),
            int(head["skipped"]),
            str(head["digest"]),
            str(head["data"]),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}

    def __len__(self) -> int:
        return self.samples

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._array("files"))

    def _array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            path = os.path.join(self.folder, f"{name}.npy")
            try:
                # A mapping of nothing is no mapping.
                mode: Any = "r" if os.path.getsize(path) > 1 << 12 else None
                # As a plain array: numpy's own class for mappings makes each access cost more.
                self._arrays[name] = np.load(path, mmap_mode=mode, allow_pickle=False).view(np.ndarray)
            except (OSError, ValueError) as err:
                raise DataError(f"{path} cannot be read: {err}", hint="hyperpod-kit data index") from None
        return self._arrays[name]

    @property
    def _paths(self) -> npt.NDArray[Any]:
        return self._array("paths")

    def file(self, number: int) -> IndexedFile:
        """One file, by its number."""
        row = self._array("files")[number]
        at = int(row["path_at"])
        path = bytes(self._paths[at : at + int(row["path_length"])]).decode("utf-8", "surrogateescape")
        source = self.sources[int(row["source"])]
        first = int(row["first_point"])
        return IndexedFile(
            number,
            below(source, path),
            self.formats[int(row["format"])],
            int(row["size"]),
            int(row["mtime_ns"]),
            bytes(row["digest"]).decode("ascii", "replace"),
            int(row["first"]),
            int(row["samples"]),
            int(row["skipped"]),
            self._array("points")[first : first + int(row["points"])],
        )

    def where(self, samples: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(file, start, length) of each sample. Raises IndexError for one that there is not."""
        if samples.size and (int(samples.min()) < 0 or int(samples.max()) >= self.samples):
            raise IndexError(f"samples {int(samples.min())} … {int(samples.max())} of {self.samples}")
        if "starts" not in self._arrays and len(samples) <= _FEW:
            for name in ("starts", "lengths"):
                self._fetch(name, samples)
        firsts = self.firsts
        files = np.searchsorted(firsts, samples, side="right") - 1
        return (
            files.astype(np.int64),
            self._array("starts")[samples].astype(np.int64),
            self._array("lengths")[samples].astype(np.int64),
        )

    def _fetch(self, name: str, samples: Numbers) -> None:
        """Have the kernel fetch the pages with these samples side by side, while nothing of an array is mapped yet: to
        touch them one after another is to wait for the disk as often, where a training goes on in the middle."""
        array = self._array(name)
        path = os.path.join(self.folder, f"{name}.npy")
        with contextlib.suppress(OSError), open(path, "rb") as stream:  # who reads the array finds out what is wrong
            head = os.fstat(stream.fileno()).st_size - array.nbytes
            for page in distinct((samples * array.itemsize + head) >> _PAGE_BITS).tolist():
                os.posix_fadvise(stream.fileno(), page << _PAGE_BITS, 1 << _PAGE_BITS, os.POSIX_FADV_WILLNEED)

    @property
    def firsts(self) -> Numbers:
        """The first sample of each file."""
        if "firsts" not in self._arrays:
            self._arrays["firsts"] = self._array("files")["first"].astype(np.int64)
        return self._arrays["firsts"]

    def block_for(self, size: int = 1 << 20) -> int:
        """How many samples are about `size` bytes, at least 16."""
        mean = max(1, self.bytes // max(1, self.samples))
        return int(min(max(16, size // mean), 8192))


def below(source: str, path: str) -> str:
    """A file's path, in its source; "" is the source itself."""
    return source if not path else f"{source.rstrip('/')}/{path}"


def data_digest(rows: npt.NDArray[Any], paths: bytes) -> str:
    """Digest of the paths below their sources, and of each file's content and samples, but no times."""
    found = hashlib.blake2b(paths, digest_size=16)
    for name in ("source", "path_at", "size", "digest", "samples", "skipped"):
        found.update(np.ascontiguousarray(rows[name]).tobytes())
    return found.hexdigest()


def header(index: SampleIndex) -> bytes:
    """The bytes of `index.json`."""
    return json.dumps(
        {
            "format": FORMAT,
            "sources": list(index.sources),
            "formats": list(index.formats),
            "samples": index.samples,
            "bytes": index.bytes,
            "skipped": index.skipped,
            "digest": index.digest,
            "data": index.data,
        },
        indent=1,
    ).encode()
