"""Make an index, or bring one up to date: files in parallel, what is done stays done, unchanged files are not read."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.formats.table import Scan, import_format_module
from hyperpod_kit.data.index import layout, sources
from hyperpod_kit.data.index.layout import FILE, POINT, IndexedFile, SampleIndex, join_source_path
from hyperpod_kit.data.index.records import decode_record
from hyperpod_kit.data.index.sources import SourceEntry
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.data.reading.listing import storage_errors_as_data_unavailable
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import SourceFiles, describe_change, open_source
from hyperpod_kit.errors import BadRecord, ChangedFile, DataError
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

_INDEX_SUFFIX = ".hpk-index"
_FILES, _BYTES = 64, 1 << 20
"""Of a group of small files."""


@dataclass(frozen=True)
class BuildOutcome:
    """An index, with how many files were read and how many an earlier run had read."""

    index: SampleIndex
    read: int
    reused: int
    passed_over: int


def default_index_directory(source_names: Sequence[str]) -> str:
    """Choose where an index goes when nobody says: into the source, if it is one directory that can be written, else
    into the user's cache."""
    import hashlib

    if len(source_names) == 1 and os.path.isdir(source_names[0]) and os.access(source_names[0], os.W_OK):
        return os.path.join(os.path.abspath(source_names[0]), _INDEX_SUFFIX)
    key = hashlib.blake2b("\0".join(source_names).encode(), digest_size=8).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "hyperpod-kit", "data", key)


def build_index(
    source_names: Sequence[str],
    out: str | None = None,
    *,
    format: str | None = None,
    threads: int | None = None,
    check: bool = False,
    on_bad: str = "raise",
    reply_timeout: float = REPLY_SECONDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BuildOutcome:
    """Build the index of `source_names` in `out`; `progress(bytes done, bytes in all)` is called at times.

    Killed and called again, it goes on; called when nothing changed, it reads no file. `check`: each JSON
    line is decoded, and `on_bad` says whether a bad one raises, or is left out and counted (`skip`).
    `reply_timeout`: seconds after which a mount that gives no answer counts as failed.
    Raises DataError, BadRecord, DataUnavailable for storage that is gone or does not answer, OSError.
    """
    directory = out or default_index_directory(source_names)
    mounts = SourceMounts(reply_timeout)
    listing = sources.list_sources(source_names, mounts, format=format)
    by_descriptor.make_directories(directory)
    parts = Parts(os.path.join(directory, "parts"), digests.fastest_algorithm() + (f"-{on_bad}" if check else ""))
    scans: list[Scan | None] = [parts.read_scan_if_intact(_scan_key(listing, file)) for file in listing.files]
    reused = sum(cached is not None for cached in scans)
    total = sum(file.size for file in listing.files)
    count = ByteCount(total, sum(file.size for file, scan in zip(listing.files, scans, strict=True) if scan), progress)
    scanner = FileScanner(listing, mounts, count, on_bad if check else None)
    for number, scan in _scan_missing(scanner, scans, threads or max(4, min(8, os.cpu_count() or 1))):
        scans[number] = scan
        parts.append_scan(_scan_key(listing, listing.files[number]), scan)
    parts.flush_and_close()
    index = _write_index(directory, listing, [scan for scan in scans if scan is not None])
    return BuildOutcome(index, len(listing.files) - reused, reused, listing.passed_over)


class ByteCount:
    """Bytes that threads have looked at, told a few times a second."""

    def __init__(self, total: int, done: int, report: Callable[[int, int], None]) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = done
        self._report = report
        self._reported_at = 0.0

    def advance_and_report(self, count: int) -> None:
        """Count more bytes."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._reported_at < 0.1 and self._done < self._total:
                return
            self._reported_at = now
            self._report(self._done, self._total)


def _scan_key(listing: sources.SourceListing, file: sources.SourceEntry) -> str:
    return f"{file.format} {file.size} {file.mtime_ns} {join_source_path(listing.sources[file.source], file.path)}"


@dataclass(frozen=True)
class FileScanner:
    """Scans files as asked."""

    listing: sources.SourceListing
    mounts: SourceMounts
    count: ByteCount
    on_bad: str | None

    def scan_file(self, number: int) -> Scan:
        """Scan a file. Raises DataError, OSError."""
        file = self.listing.files[number]
        path = join_source_path(self.listing.sources[file.source], file.path)
        with storage_errors_as_data_unavailable(path), contextlib.closing(
            open_source(path, self.mounts)
        ) as opened_file:
            if (opened_file.size, opened_file.mtime_ns) != (file.size, file.mtime_ns):
                raise ChangedFile(
                    describe_change(path, (file.size, file.mtime_ns), (opened_file.size, opened_file.mtime_ns))
                )
            try:
                scan: Scan = import_format_module(file.format).scan(opened_file, self.count.advance_and_report)
            except ValueError as err:
                raise DataError(f"{path} cannot be indexed: {err}") from None
        if self.on_bad is None:
            return scan
        return drop_or_refuse_bad_records(path, file, scan, self.on_bad)

    def scan_all(self, numbers: Sequence[int]) -> list[tuple[int, Scan]]:
        """Scan several files; returns the scans by their numbers."""
        return [(number, self.scan_file(number)) for number in numbers]


def _scan_missing(scanner: FileScanner, scans: Sequence[Scan | None], threads: int) -> Iterator[tuple[int, Scan]]:
    """Yield the missing scans as they come.

    No more files are under way than a few for each thread: there may be millions.
    """
    groups = _group_small_files(scanner.listing.files, [number for number, scan in enumerate(scans) if scan is None])
    under_way: set[Future[list[tuple[int, Scan]]]] = set()
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                for group in groups:
                    under_way.add(pool.submit(scanner.scan_all, group))
                    if len(under_way) >= threads * 4:
                        break
                if not under_way:
                    return
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _group_small_files(files: Sequence[sources.SourceEntry], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Group files for one thread: many small ones, as to hand each over costs more than to scan it."""
    group: list[int] = []
    size = 0
    for number in numbers:
        group.append(number)
        size += files[number].size
        if len(group) >= _FILES or size >= _BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _write_index(directory: str, listing: sources.SourceListing, scans: Sequence[Scan]) -> SampleIndex:
    formats = sorted({file.format for file in listing.files})
    names = [file.path.encode("utf-8", "surrogateescape") for file in listing.files]
    samples = np.array([len(scan.starts) for scan in scans], np.uint64)
    points = np.array([len(scan.points) for scan in scans], np.uint64)
    lengths = np.array([len(name) for name in names], np.uint64)
    rows = np.zeros(len(scans), FILE)
    columns: dict[str, Any] = {
        "source": [file.source for file in listing.files],
        "path_at": np.cumsum(lengths) - lengths,
        "path_length": lengths,
        "format": [formats.index(file.format) for file in listing.files],
        "size": [file.size for file in listing.files],
        "mtime_ns": [file.mtime_ns for file in listing.files],
        "digest": [scan.digest.encode() for scan in scans],
        "first": np.cumsum(samples) - samples,
        "samples": samples,
        "skipped": [scan.skipped for scan in scans],
        "first_point": np.cumsum(points) - points,
        "points": points,
    }
    for name, column in columns.items():
        rows[name] = column
    paths, first = b"".join(names), int(samples.sum())
    if not first:
        raise DataError(f"{', '.join(listing.sources)}: {counted(len(scans), 'file')} without any sample")
    arrays: dict[str, npt.NDArray[Any]] = {
        "files": rows,
        "paths": np.frombuffer(paths, np.uint8),
        "starts": np.concatenate([scan.starts for scan in scans]),
        "lengths": np.concatenate([scan.lengths for scan in scans]),
        "points": _points_array(scans),
    }
    # The old index is none before the first array changes: a reader sees a whole one, or is told that there is none.
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(os.path.join(directory, layout.HEADER))
    for title, array in arrays.items():
        with atomic_file.open_for_atomic_replace(os.path.join(directory, f"{title}.npy")) as stream:
            np.save(stream, array, allow_pickle=False)
    index = SampleIndex(
        directory,
        listing.sources,
        tuple(formats),
        first,
        int(arrays["lengths"].sum(dtype=np.uint64)),
        int(rows["skipped"].sum()),
        digests.fastest_algorithm(),
        layout.data_digest(rows, paths),
    )
    atomic_file.write_atomically(os.path.join(directory, layout.HEADER), layout.render_header(index), durable=True)
    return index


def _points_array(scans: Sequence[Scan]) -> npt.NDArray[Any]:
    pairs = np.concatenate([np.zeros((0, 2), np.uint64), *(scan.points for scan in scans if len(scan.points))])
    points = np.zeros(len(pairs), POINT)
    points["raw"], points["plain"] = pairs[:, 0], pairs[:, 1]
    return points


# Decode every sample of a file once, while it is indexed, so that training does not meet one that cannot be.

_MEMORY_BYTES = 64 << 20


def drop_or_refuse_bad_records(path: str, file: SourceEntry, scan: Scan, on_bad: str) -> Scan:
    """Decode every record of a file; return the scan without the bad ones, and with their count.

    Raises BadRecord unless `on_bad` is "skip".
    """
    points = np.zeros(len(scan.points), POINT)
    points["raw"], points["plain"] = scan.points[:, 0], scan.points[:, 1]
    count = len(scan.starts)
    indexed_file = IndexedFile(
        0, path, file.format, file.size, file.mtime_ns, scan.digest, 0, count, scan.skipped, points
    )
    files = SourceFiles()
    reader = import_format_module(file.format).reader(files, _MEMORY_BYTES)
    good = np.ones(count, bool)
    try:
        for number, (start, length) in enumerate(zip(scan.starts.tolist(), scan.lengths.tolist(), strict=True)):
            try:
                decode_record(reader.record(indexed_file, start, length), indexed_file, number, start)
            except BadRecord:
                if on_bad != "skip":
                    raise
                good[number] = False
    finally:
        files.close()
    bad = count - int(good.sum())
    return scan._replace(starts=scan.starts[good], lengths=scan.lengths[good], skipped=scan.skipped + bad)


# What an indexing run has found so far, file by file, so that the next one goes on: appended, and read up to the
# first record that is not whole.

_MAGIC = b"hpkpart1"
_HEAD = struct.Struct("<8sIQI")
"""Magic, bytes of the key, bytes of the scan with its checksum, checksum of the key."""

_COUNTS = struct.Struct("<3Q")
"""Samples, places at which reading can begin, records that are none."""

_CHECKSUM_BYTES = 4
"""Bytes of a scan's checksum, its last ones."""

_MAX_KEY_BYTES = 64 << 10
"""Bytes of a key, which has a path in it: what is longer is no key, however long the file is."""

_FLUSH_SECONDS = 5.0
"""Seconds between two flushes to disk."""


class Parts:
    """The scans in `folder`, by a key that names the file and what it was. `digest`: another one is another part."""

    def __init__(self, folder: str, digest: str) -> None:
        by_descriptor.make_directories(folder)
        self._path = os.path.join(folder, f"scans-{digest}")
        self._locations: dict[str, tuple[int, int]] = {}
        self._stream: IO[bytes] = by_descriptor.open_stream_for_writing(self._path, "a+b")  # closed by flush
        end = self._load_locations_and_find_valid_end()
        self._stream.truncate(end)
        self._flushed = time.monotonic()

    def _load_locations_and_find_valid_end(self) -> int:
        """Note where each record lies; returns where the last whole one ends."""
        self._stream.seek(0)
        at = 0
        size = os.fstat(self._stream.fileno()).st_size
        while True:
            head = self._stream.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return at
            magic, key_length, length, check = _HEAD.unpack(head)
            begin = at + _HEAD.size + key_length
            if magic != _MAGIC or key_length > _MAX_KEY_BYTES or begin + length > size:
                return at
            key = self._stream.read(key_length)
            if zlib.crc32(key) != check:
                return at
            self._locations[key.decode("utf-8", "surrogateescape")] = (begin, length)
            at = begin + length
            self._stream.seek(at)

    def read_scan_if_intact(self, key: str) -> Scan | None:
        """Return the scan of a key; None when there is none that is whole."""
        location = self._locations.get(key)
        if location is None:
            return None
        self._stream.seek(location[0])
        data = self._stream.read(location[1])
        end = len(data) - _CHECKSUM_BYTES
        if end < _COUNTS.size or zlib.crc32(memoryview(data)[:end]) != int.from_bytes(data[end:], "little"):
            return None
        count, points, skipped = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        text_at = at + 12 * count + 16 * points
        if text_at > end:
            return None
        try:
            digest = data[text_at:end].decode()
        except UnicodeDecodeError:
            return None
        starts = np.frombuffer(data, "<u8", count, at)
        lengths = np.frombuffer(data, "<u4", count, at + 8 * count)
        points_array = np.frombuffer(data, "<u8", 2 * points, at + 12 * count).reshape(-1, 2)
        return Scan(starts, lengths, digest, skipped, points_array)

    def append_scan(self, key: str, scan: Scan) -> None:
        """Keep a scan."""
        body = io.BytesIO()
        body.write(_COUNTS.pack(len(scan.starts), len(scan.points), scan.skipped))
        body.write(np.ascontiguousarray(scan.starts, "<u8").tobytes())
        body.write(np.ascontiguousarray(scan.lengths, "<u4").tobytes())
        body.write(np.ascontiguousarray(scan.points, "<u8").tobytes())
        body.write(scan.digest.encode())
        data = body.getvalue()
        name = key.encode("utf-8", "surrogateescape")
        self._stream.write(
            _HEAD.pack(_MAGIC, len(name), len(data) + _CHECKSUM_BYTES, zlib.crc32(name))
            + name
            + data
            + zlib.crc32(data).to_bytes(4, "little")
        )
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._stream.flush()
            self._flushed = time.monotonic()

    def flush_and_close(self) -> None:
        """Write everything to the file and close it."""
        self._stream.close()
