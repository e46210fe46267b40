"""Make an index, or bring one up to date: files in parallel, what is done stays done, unchanged files are not read."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.formats import digests
from hyperpod_kit.data.formats.table import Scan, module_of
from hyperpod_kit.data.index import layout, sources
from hyperpod_kit.data.index.check import checked
from hyperpod_kit.data.index.layout import FILE, POINT, SampleIndex, below
from hyperpod_kit.data.index.parts import Parts
from hyperpod_kit.data.reading.bounded import ANSWER
from hyperpod_kit.data.reading.listing import storage_of
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import open_source, said_of_change
from hyperpod_kit.errors import ChangedFile, DataError
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

_BESIDE = ".hpk-index"
_FILES, _BYTES = 64, 1 << 20
"""Of a group of small files."""


@dataclass(frozen=True)
class Built:
    """An index, and what it took: files that were read and files that an earlier run had read."""

    index: SampleIndex
    read: int
    known: int
    passed_over: int


def place_of(names: Sequence[str]) -> str:
    """Where an index goes when nobody says: into the source, if it is one directory that can be written, else into the
    user's cache."""
    import hashlib

    if len(names) == 1 and os.path.isdir(names[0]) and os.access(names[0], os.W_OK):
        return os.path.join(os.path.abspath(names[0]), _BESIDE)
    key = hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "hyperpod-kit", "data", key)


def build(
    names: Sequence[str],
    out: str | None = None,
    *,
    format: str | None = None,
    threads: int | None = None,
    check: bool = False,
    on_bad: str = "raise",
    answer: float = ANSWER,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """The index of `names`, in `out`. `progress(bytes done, bytes in all)` is called from time to time.

    Killed and called again, it goes on; called when nothing changed, it reads no file. `check`: each JSON line
    is decoded, and `on_bad` says whether a bad one raises, or is left out and counted (`skip`). `answer`: seconds after
    which a mount that gives no answer counts as failed.
    Raises DataError, BadRecord, DataUnavailable for storage that is gone or does not answer, OSError.
    """
    place = out or place_of(names)
    mounts = SourceMounts(answer)
    found = sources.look(names, mounts, format=format)
    by_descriptor.make_directories(place)
    parts = Parts(os.path.join(place, "parts"), digests.fastest() + (f"-{on_bad}" if check else ""))
    scans: list[Scan | None] = [parts.get(_key(found, one)) for one in found.files]
    known = sum(one is not None for one in scans)
    total = sum(one.size for one in found.files)
    count = ByteCount(total, sum(one.size for one, scan in zip(found.files, scans, strict=True) if scan), progress)
    look = FileLook(found, mounts, count, on_bad if check else None)
    for number, scan in _scanned(look, scans, threads or max(4, min(8, os.cpu_count() or 1))):
        scans[number] = scan
        parts.put(_key(found, found.files[number]), scan)
    parts.flush()
    made = _write(place, found, [scan for scan in scans if scan is not None])
    return Built(made, len(found.files) - known, known, found.passed_over)


class ByteCount:
    """Bytes that threads have looked at, told a few times a second."""

    def __init__(self, total: int, done: int, tell: Callable[[int, int], None]) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = done
        self._tell = tell
        self._told = 0.0

    def advance(self, count: int) -> None:
        """So many more."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._told < 0.1 and self._done < self._total:
                return
            self._told = now
            self._tell(self._done, self._total)


def _key(found: sources.FoundSources, one: sources.FoundFile) -> str:
    return f"{one.format} {one.size} {one.mtime_ns} {below(found.sources[one.source], one.path)}"


@dataclass(frozen=True)
class FileLook:
    """How a file is looked at."""

    found: sources.FoundSources
    mounts: SourceMounts
    count: ByteCount
    on_bad: str | None

    def at(self, number: int) -> Scan:
        """What is in a file. Raises DataError, OSError."""
        one = self.found.files[number]
        path = below(self.found.sources[one.source], one.path)
        with storage_of(path), contextlib.closing(open_source(path, self.mounts)) as file:
            if (file.size, file.mtime_ns) != (one.size, one.mtime_ns):
                raise ChangedFile(said_of_change(path, (one.size, one.mtime_ns), (file.size, file.mtime_ns)))
            try:
                scan: Scan = module_of(one.format).scan(file, self.count.advance)
            except ValueError as err:
                raise DataError(f"{path} cannot be indexed: {err}") from None
        return scan if self.on_bad is None else checked(path, one, scan, self.on_bad)

    def at_each(self, numbers: Sequence[int]) -> list[tuple[int, Scan]]:
        """What is in each of several files, by their numbers."""
        return [(number, self.at(number)) for number in numbers]


def _scanned(look: FileLook, scans: Sequence[Scan | None], threads: int) -> Iterator[tuple[int, Scan]]:
    """What is missing, as it comes. No more files are under way than a few for each thread: there may be millions."""
    groups = _groups(look.found.files, [number for number, scan in enumerate(scans) if scan is None])
    under_way: set[Future[list[tuple[int, Scan]]]] = set()
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                for group in groups:
                    under_way.add(pool.submit(look.at_each, group))
                    if len(under_way) >= threads * 4:
                        break
                if not under_way:
                    return
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for one in done:
                    yield from one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _groups(files: Sequence[sources.FoundFile], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Files that one thread looks at in a row: many small ones, as to hand each over costs more than to look at it."""
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


def _write(place: str, found: sources.FoundSources, scans: Sequence[Scan]) -> SampleIndex:
    formats = sorted({one.format for one in found.files})
    names = [one.path.encode("utf-8", "surrogateescape") for one in found.files]
    samples = np.array([len(scan.starts) for scan in scans], np.uint64)
    points = np.array([len(scan.points) for scan in scans], np.uint64)
    lengths = np.array([len(name) for name in names], np.uint64)
    rows = np.zeros(len(scans), FILE)
    columns: dict[str, Any] = {
        "source": [one.source for one in found.files],
        "path_at": np.cumsum(lengths) - lengths,
        "path_length": lengths,
        "format": [formats.index(one.format) for one in found.files],
        "size": [one.size for one in found.files],
        "mtime_ns": [one.mtime_ns for one in found.files],
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
        raise DataError(f"{', '.join(found.sources)}: {len(scans)} files, and no sample in any of them")
    arrays: dict[str, npt.NDArray[Any]] = {
        "files": rows,
        "paths": np.frombuffer(paths, np.uint8),
        "starts": np.concatenate([scan.starts for scan in scans]),
        "lengths": np.concatenate([scan.lengths for scan in scans]),
        "points": _points(scans),
    }
    # The old index is none before the first array changes: a reader sees a whole one, or is told that there is none.
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(os.path.join(place, layout.HEADER))
    for title, array in arrays.items():
        with atomic_file.replacing(os.path.join(place, f"{title}.npy")) as stream:
            np.save(stream, array, allow_pickle=False)
    index = SampleIndex(
        place,
        found.sources,
        tuple(formats),
        first,
        int(arrays["lengths"].sum(dtype=np.uint64)),
        int(rows["skipped"].sum()),
        digests.fastest(),
        layout.data_digest(rows, paths),
    )
    atomic_file.replace(os.path.join(place, layout.HEADER), layout.header(index), durable=True)
    return index


def _points(scans: Sequence[Scan]) -> npt.NDArray[Any]:
    pairs = np.concatenate([np.zeros((0, 2), np.uint64), *(scan.points for scan in scans if len(scan.points))])
    points = np.zeros(len(pairs), POINT)
    points["raw"], points["plain"] = pairs[:, 0], pairs[:, 1]
    return points
