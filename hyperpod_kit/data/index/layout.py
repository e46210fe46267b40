"""An index on disk: a directory of numpy arrays, and `index.json`, which is written last.

`hyperpod-kit data index` (`build.build_index`) writes it, and `SampleIndex.open` opens it.

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
import stat
import tokenize
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.numbers.deduplication import unique_values
from hyperpod_kit.errors import DataError, NoData, Untrusted
from hyperpod_kit.untrusted import files, parse
from hyperpod_kit.untrusted.text import clean_one_line, counted

FORMAT = "hpk-data/1"
HEADER = "index.json"
_MAX_HEADER_BYTES = 64 << 20
_FEW = 4096
_PAGE_BITS = 12
_MIN_MAPPED_BYTES = 1 << 12
"""Bytes of a file beyond which it is mapped: small ones are read whole, whatever they say that they have."""
_ARRAY_ERRORS = (tokenize.TokenError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError)
"""What numpy raises besides ValueError where a file does not begin as an array: it has Python parse the header."""

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
    """One file of an index.

    Attributes:
        number: Its number in the index, from 0.
        path: The whole path, below its source as that is now.
        format: How its samples lie in it: "lines", "parquet", "tar", "whole", "gzip" or "zstd".
        size: Its bytes.
        mtime_ns: When it was last changed, in nanoseconds since 1970.
        digest: Of its bytes, 32 hexadecimal digits.
        first: The number of its first sample.
        samples: How many samples it has.
        skipped: How many of its records were left out.
        points: Where reading can begin in a compressed file: (offset in the file, offset in its plain text).
    """

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
    """The index in a directory: where each sample lies in which file.

    Open one with `SampleIndex.open`. It is cheap to send to another process, which maps the arrays again.

    Attributes:
        folder: The directory of the index.
        sources: Where the indexed files lie: directories, files or `s3://` prefixes.
        formats: The formats of the files, sorted.
        samples: How many samples there are, which is also its `len`.
        bytes: How many bytes all samples have together.
        skipped: How many records were left out when the index was made.
        digest: The algorithm of the files' digests.
        data: A digest of what the samples are, wherever their files lie: paths below the sources, content, count.

    Example:
        With the index that `hyperpod-kit data index /tmp/corpus --out /tmp/index` has made:

            from hyperpod_kit.data import SampleIndex

            index = SampleIndex.open("/tmp/index")
            print(f"{len(index)} samples in {index.files} files, {index.bytes} bytes")
    """

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
        """Open the index in a directory.

        Args:
            folder: The directory that `hyperpod-kit data index` wrote.
            sources: Where its sources lie now, when they were moved, in the same order. None: where they were.

        Returns:
            The index; its arrays are read when they are needed, which may raise DataError too.

        Raises:
            NoData: There is no index.
            DataError: The index is damaged, of another format, or has another number of sources.
        """
        directory = os.fspath(folder)
        try:
            head = parse.parse_json_object(
                files.read_file_or_pipe(os.path.join(directory, HEADER), _MAX_HEADER_BYTES), _MAX_HEADER_BYTES
            )
        except FileNotFoundError:
            raise NoData(f"{directory} has no index", hint=f"hyperpod-kit data index SRC --out {directory}") from None
        except (ValueError, Untrusted) as err:
            raise DataError(f"{directory}/{HEADER} is damaged: {err}", hint="hyperpod-kit data index") from None
        if head.get("format") != FORMAT:
            raise DataError(f"{directory} is of format {clean_one_line(head.get('format'))}, expected {FORMAT!r}")
        if not _is_valid_header(head):
            raise DataError(
                f"{directory}/{HEADER} was not written by hyperpod-kit: a field is missing or invalid",
                hint="hyperpod-kit data index",
            )
        if sources is not None and len(sources) != len(head["sources"]):
            raise DataError(
                f"{directory} has {counted(len(head['sources']), 'source')}, but the call has {len(sources)}"
            )
        return cls(
            directory,
            tuple(sources or head["sources"]),
            tuple(head["formats"]),
            head["samples"],
            head["bytes"],
            head["skipped"],
            head["digest"],
            head["data"],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}

    def __len__(self) -> int:
        return self.samples

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._cached_array("files"))

    def _cached_array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            path = os.path.join(self.folder, f"{name}.npy")
            try:
                array = load_array(path, _KINDS.get(name))
                self._require_consistent(name, array)
            except (OSError, ValueError, EOFError, MemoryError, OverflowError) as err:
                raise DataError(
                    f"{path} cannot be read: {clean_one_line(err)}", hint="hyperpod-kit data index"
                ) from None
            self._arrays[name] = array
        return self._arrays[name]

    def _require_consistent(self, name: str, array: npt.NDArray[Any]) -> None:
        """Raise ValueError or DataError unless what an array says of other arrays is so.

        Whoever shares an index may have written anything.
        """
        if name in ("starts", "lengths") and len(array) != self.samples:
            raise ValueError(f"{len(array)} rows for {self.samples} samples")
        if name != "files" or not len(array):
            return
        firsts = array["first"].astype(np.int64)
        ends = np.append(firsts[1:], self.samples)
        path_ends = array["path_at"] + array["path_length"]
        if int(array["source"].max()) >= len(self.sources) or int(array["format"].max()) >= len(self.formats):
            raise ValueError("a file has an unknown source or format")
        if int(path_ends.max()) > len(self._concatenated_path_bytes) or (path_ends < array["path_at"]).any():
            raise ValueError("a file has no path")
        if firsts[0] or (firsts > ends).any():
            raise ValueError("the samples of its files do not follow one another")

    @property
    def _concatenated_path_bytes(self) -> npt.NDArray[Any]:
        """Return the paths of all files, one behind the other, as bytes."""
        return self._cached_array("paths")

    def file(self, number: int) -> IndexedFile:
        """Describe one file.

        Args:
            number: The number of the file, from 0.

        Returns:
            What the index has recorded of it.
        """
        row = self._cached_array("files")[number]
        at = int(row["path_at"])
        path = bytes(self._concatenated_path_bytes[at : at + int(row["path_length"])]).decode(
            "utf-8", "surrogateescape"
        )
        source = self.sources[int(row["source"])]
        first = int(row["first_point"])
        return IndexedFile(
            number,
            join_source_path(source, path),
            self.formats[int(row["format"])],
            int(row["size"]),
            int(row["mtime_ns"]),
            bytes(row["digest"]).decode("ascii", "replace"),
            int(row["first"]),
            int(row["samples"]),
            int(row["skipped"]),
            self._cached_array("points")[first : first + int(row["points"])],
        )

    def where(self, samples: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Locate samples.

        Args:
            samples: The numbers of samples.

        Returns:
            (file, start, length) of each: the number of its file, and bytes in that (of a compressed file in its plain
            text; of Parquet its row).

        Raises:
            IndexError: There is no such sample.
        """
        if samples.size and (int(samples.min()) < 0 or int(samples.max()) >= self.samples):
            raise IndexError(f"samples {int(samples.min())} … {int(samples.max())} of {self.samples}")
        if "starts" not in self._arrays and len(samples) <= _FEW:
            for name in ("starts", "lengths"):
                self._prefetch_pages(name, samples)
        firsts = self.firsts
        files = np.searchsorted(firsts, samples, side="right") - 1
        return (
            files.astype(np.int64),
            self._cached_array("starts")[samples].astype(np.int64),
            self._cached_array("lengths")[samples].astype(np.int64),
        )

    def places(self, samples: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Locate samples in their files, without the number of the file.

        Args:
            samples: The numbers of samples, or a slice of them.

        Returns:
            (start, length) of each, see `where`.
        """
        return self._cached_array("starts")[samples], self._cached_array("lengths")[samples]

    def _prefetch_pages(self, name: str, samples: Numbers) -> None:
        """Have the kernel fetch the pages with these samples side by side, while nothing of an array is mapped yet: to
        touch them one after another is to wait for the disk as often, where a training goes on in the middle."""
        array = self._cached_array(name)
        path = os.path.join(self.folder, f"{name}.npy")
        # Who reads the array finds out what is wrong.
        with contextlib.suppress(OSError), open(path, "rb", opener=files.open_nonblocking) as stream:
            head = os.fstat(stream.fileno()).st_size - array.nbytes
            for page in unique_values((samples * array.itemsize + head) >> _PAGE_BITS).tolist():
                os.posix_fadvise(stream.fileno(), page << _PAGE_BITS, 1 << _PAGE_BITS, os.POSIX_FADV_WILLNEED)

    @property
    def firsts(self) -> Numbers:
        """The number of the first sample of each file."""
        if "firsts" not in self._arrays:
            self._arrays["firsts"] = self._cached_array("files")["first"].astype(np.int64)
        return self._arrays["firsts"]

    def samples_of_files(self) -> Numbers:
        """Count the samples of each file.

        Returns:
            The counts, in the order of the files.
        """
        return self._cached_array("files")["samples"].astype(np.int64)

    def block_for(self, size: int = 1 << 20) -> int:
        """Compute how many samples have about `size` bytes.

        Args:
            size: Bytes. Default: 1 MiB.

        Returns:
            The number, 16 at least and 8192 at most.
        """
        mean = max(1, self.bytes // max(1, self.samples))
        return int(min(max(16, size // mean), 8192))


_KINDS = {
    "files": FILE,
    "points": POINT,
    "paths": np.dtype(np.uint8),
    "starts": np.dtype("<u8"),
    "lengths": np.dtype("<u4"),
}


def load_array(path: str, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Load an array of numpy's, mapped where it is large. Raises OSError, ValueError, EOFError."""
    handle = files.open_nonblocking(path)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"it is {files.describe_if_not_regular_file(path) or 'no file'}, expected a file")
        # A mapping of nothing is no mapping.
        mode: Any = "r" if facts.st_size > _MIN_MAPPED_BYTES else None
        try:
            array = np.load(f"/proc/self/fd/{handle}", mmap_mode=mode, allow_pickle=False)
        except _ARRAY_ERRORS as err:
            raise ValueError(str(err)) from None
        if not isinstance(array, np.ndarray) or array.ndim != 1:
            raise ValueError("it is not an array in one dimension")
        if dtype is not None and array.dtype != dtype:
            raise ValueError(f"its rows are {array.dtype}, expected {dtype}")
        # As a plain array: numpy's own class for mappings makes each access cost more.
        return array.view(np.ndarray)
    finally:
        os.close(handle)


def _is_valid_header(head: dict[str, Any]) -> bool:
    texts_are_valid = all(isinstance(head.get(name), str) for name in ("digest", "data"))
    counts_are_valid = all(
        type(head.get(name)) is int and 0 <= head[name] < 1 << 63 for name in ("samples", "bytes", "skipped")
    )
    return (
        texts_are_valid
        and counts_are_valid
        and _is_list_of_strings(head.get("sources"))
        and _is_list_of_strings(head.get("formats"))
    )


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def join_source_path(source: str, path: str) -> str:
    """Return the full path of a file: its source joined with its path below it; "" is the source itself."""
    if not path:
        return source
    return f"{source.rstrip('/')}/{path}"


def data_digest(rows: npt.NDArray[Any], paths: bytes) -> str:
    """Digest the paths below their sources, and of each file's content and samples, but no times."""
    digest = hashlib.blake2b(paths, digest_size=16)
    for name in ("source", "path_at", "size", "digest", "samples", "skipped"):
        digest.update(np.ascontiguousarray(rows[name]).tobytes())
    return digest.hexdigest()


def render_header(index: SampleIndex) -> bytes:
    """Make the bytes of `index.json`."""
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
