"""Open files of the sources: read by ranges, opened by path, closed when there are many, refused when they changed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.bounded import PIECE_BYTES, REPLY_SECONDS, BoundedFile
from hyperpod_kit.data.reading.chunks import ChunkedObject, ChunkStore, DiskCache
from hyperpod_kit.data.reading.local_file import LocalFile
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.errors import ChangedFile
from hyperpod_kit.system.bounded_thread import CallUnanswered

log = logging.getLogger("hyperpod_kit.data")

_MAX_OPEN = 128
_MAX_OPEN_OF_MIX, _MIN_OPEN = 1024, 4
"""Of all sets of a mix, and of each at least."""
MEMORY_BYTES = 256 << 20
"""Bytes of objects that a process keeps."""


class FileFacts(Protocol):
    """What an index says of a file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def digest(self) -> str:
        """Return the digest of its bytes; "" where it is not known."""


class ReadTogether(Protocol):
    """Decides what is read together: see BlockCuts."""

    def piece_keys(self, samples: Numbers, files: Numbers) -> Numbers: ...
    def piece_start_offsets(self, samples: Numbers, files: Numbers) -> Numbers: ...
    def piece_range_if_ordered_and_small(self, sample: int, file: int) -> tuple[int, int] | None: ...
    def block_start_offsets_if_worth_cutting(self, file: FileFacts) -> Sequence[int]: ...


class SourceFile(Protocol):
    """An open file or object."""

    path: str
    size: int
    mtime_ns: int

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes from `offset` on, fewer only at the end. Raises OSError."""

    def close(self) -> None:
        """Close it."""


def describe_change(path: str, indexed: tuple[int, int], current: tuple[int, int]) -> str:
    """Describe how a file has changed, by both fingerprints: (bytes, time of the last change in nanoseconds)."""
    then, now = (f"{size} bytes, changed at {time / 1e9:.6f}" for size, time in (indexed, current))
    return f"{path} has changed since it was indexed: expected {then}, found {now}"


def open_source(path: str, mounts: SourceMounts) -> SourceFile:
    """Open a path or an `s3://` address. Raises OSError, CallUnanswered for a mount that gives no answer."""
    if not path.startswith("s3://"):
        return open_file(path, mounts)
    # Imported where there are any: what speaks HTTP takes as long to import as the first batch takes to come.
    from hyperpod_kit.data.reading.objects import S3Object

    return S3Object(path)


def uncached(file: SourceFile) -> SourceFile:
    """Return the same source for one read from beginning to end, of which nothing is kept."""
    if isinstance(file, ChunkedObject):
        return file.source
    return file


def open_file(path: str, mounts: SourceMounts) -> LocalFile | BoundedFile:
    """Open a file. Raises OSError, CallUnanswered."""
    calls = mounts.bounded_calls_for(path)
    if calls is None:
        return LocalFile(path)
    return BoundedFile(path, calls)


class SourceFiles:
    """Ranges of files, by what an index says of them. For one process; a child opens its own.

    `reply_timeout`: seconds after which a call to a mount that gives no answer ends with CallUnanswered.
    """

    def __init__(
        self, memory: int = MEMORY_BYTES, disk: DiskCache | None = None, *, reply_timeout: float = REPLY_SECONDS
    ) -> None:
        self._chunking = (memory, disk)
        self._chunks: ChunkStore | None = None
        self._reply_timeout = reply_timeout
        self._mounts = SourceMounts(reply_timeout)
        self._open: OrderedDict[str, SourceFile] = OrderedDict()
        self._ready: dict[tuple[str, int, int], bytes] = {}
        self._same: dict[str, tuple[int, int]] = {}
        """Files of another time, or from elsewhere, that were compared by their digests: size and time."""
        self._pid = os.getpid()
        self.bytes_read = 0
        self.among = 1
        """How many sets of a mix this one is of: they share what a process has open, and keeps of files."""
        self.cuts: ReadTogether | None = None
        """What is read together, if that is known."""

    def read(self, facts: FileFacts, offset: int, length: int) -> bytes:
        """Read bytes of a file. Raises ChangedFile when it is not the file that was indexed, OSError."""
        data = None
        if self._ready:
            data = self._ready.pop((facts.path, offset, length), None)
        if data is None:
            data = self._open_unchanged_file(facts).read(offset, length)
        if len(data) < length and len(data) < facts.size - offset:
            # A sample that is cut short would be a sample, too. Opened again, a file that was cut says that it changed.
            raise OSError(errno.EIO, f"{len(data)} bytes received at {offset}, expected {length}", facts.path)
        self.bytes_read += len(data)
        return data

    def read_several(self, files: Sequence[FileFacts], offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Read a range of each of these files, in their order. See `read`.

        A range is read by one call to the kernel. What else `read` does for each is looked at once for all of them:
        it takes longer than to read some thousand bytes."""
        handles: dict[str, int] = {}
        for facts in {facts_of_file.path: facts_of_file for facts_of_file in files}.values():
            file = self._open_unchanged_file(facts)
            if not isinstance(file, LocalFile) or len(handles) == self._max_open_files:
                return [self.read(*range_of_file) for range_of_file in zip(files, offsets, lengths)]
            handles[facts.path] = file.handle
        data = list(map(os.pread, [handles[facts_of_file.path] for facts_of_file in files], lengths, offsets))
        if list(map(len, data)) != list(lengths):
            return [self.read(*range_of_file) for range_of_file in zip(files, offsets, lengths)]
        self.bytes_read += sum(lengths)
        return data

    @property
    def has_slow_sources(self) -> bool:
        """Whether anything that was read is no file of a disk."""
        return self._chunks is not None or self._mounts.has_used_mounts_that_may_hang

    def prefetch_ranges(self, ranges: Iterable[tuple[FileFacts, int, int]]) -> None:
        """Prefetch the ranges that are read next, (file, offset, length) each.

        Objects are fetched side by side. Of an open file on a mount that may hang all ranges are read in one call, as
        a change of thread for each costs more than reading does.
        """
        self._ready.clear()
        ranges_of_files: dict[str, tuple[FileFacts, list[tuple[int, int]]]] = {}
        for facts, offset, length in ranges:
            ranges_of_files.setdefault(facts.path, (facts, []))[1].append((offset, length))
        for path, (facts, places) in ranges_of_files.items():
            if path.startswith("s3://"):
                self._prefetch_ranges_of_object(facts, places)
        opened = self._open_files_reset_after_fork()
        for path, (_, places) in ranges_of_files.items():
            file = opened.get(path)  # to open an object may have closed it
            if isinstance(file, BoundedFile) and not self._read_ranges_of_bounded_file(path, file, places):
                return

    def _read_ranges_of_bounded_file(self, path: str, file: BoundedFile, ranges: Sequence[tuple[int, int]]) -> bool:
        """Read the ranges in one call where they are several and not too long; return False when the mount does not
        answer."""
        if len(ranges) == 1 or sum(length for _, length in ranges) > PIECE_BYTES:
            return True
        try:
            data_of_ranges = file.read_ranges_in_one_call(ranges)
        except OSError as err:  # whoever reads it finds out what is wrong
            self.close_and_forget_mount(path)
            return not isinstance(err, CallUnanswered)
        self._ready.update(
            ((path, *range_of_file), data) for range_of_file, data in zip(ranges, data_of_ranges, strict=True)
        )
        return True

    def _prefetch_ranges_of_object(self, facts: FileFacts, ranges: Sequence[tuple[int, int]]) -> None:
        with contextlib.suppress(OSError):  # the read that follows says what is wrong
            file = self._open_unchanged_file(facts)
            if isinstance(file, ChunkedObject):
                file.prefetch_ranges(ranges)

    def prefetch_range(self, facts: FileFacts, offset: int, length: int) -> None:
        """Hint that a range is read soon."""
        with contextlib.suppress(OSError):  # the read that follows says what is wrong
            file = self._open_unchanged_file(facts)
            if isinstance(file, (LocalFile, BoundedFile)):
                file.prefetch_range(offset, length)
            elif isinstance(file, ChunkedObject):
                file.prefetch_ranges([(offset, length)])

    def close_and_forget_mount(self, path: str) -> None:
        """Close a file and drop what is cached of its mount: the next read opens it by its path."""
        self._mounts.forget_mount_of(path)
        self.close_file(path)

    def close_file(self, path: str) -> None:
        """Close a file that is not read again soon."""
        file = self._open_files_reset_after_fork().pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all of them."""
        for path in list(self._open_files_reset_after_fork()):
            self.close_and_forget_mount(path)
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def __del__(self) -> None:
        # A data set that nobody closed leaves no descriptors behind; a child has its parent's, and leaves them alone.
        # At the very end of a process modules are taken down, and all is closed without this.
        if contextlib is None or os is None:
            return
        with contextlib.suppress(Exception):
            if self._pid == os.getpid():
                self.close()

    def _open_source(self, path: str, facts: FileFacts) -> SourceFile:
        """Open a file, or an object whose chunks are kept.

        `facts`: of what was indexed, which may lie at another path.
        """
        if not path.startswith("s3://"):
            return open_file(path, self._mounts)
        if self._chunks is None:
            self._chunks = ChunkStore(*self._chunking)
        if self.cuts is None:
            return ChunkedObject(path, self._chunks)
        return ChunkedObject(path, self._chunks, self.cuts.block_start_offsets_if_worth_cutting(facts))

    def _open_files_reset_after_fork(self) -> OrderedDict[str, SourceFile]:
        """Return what this process has open.

        After a fork descriptors are shared with the parent, which may close them, and threads are the parent's alone.
        """
        if self._pid != os.getpid():
            self._open, self._chunks, self._pid = OrderedDict(), None, os.getpid()
            self._mounts, self._ready = SourceMounts(self._reply_timeout), {}
        return self._open

    def _open_unchanged_file(self, facts: FileFacts) -> SourceFile:
        open_file_of_path = self._open_files_reset_after_fork().get(facts.path)
        if open_file_of_path is not None:
            self._open.move_to_end(facts.path)
            return open_file_of_path
        file = self._open_source(facts.path, facts)
        may_be_again = facts.path.startswith("s3://") and bool(facts.digest)  # an upload gives another time
        if (file.size, file.mtime_ns) != (facts.size, facts.mtime_ns) and not (
            may_be_again and self._has_indexed_bytes(file, facts)
        ):
            file.close()
            raise ChangedFile(describe_change(facts.path, (facts.size, facts.mtime_ns), (file.size, file.mtime_ns)))
        self._keep_open_within_limit(file)
        return file

    def _has_indexed_bytes(self, file: SourceFile, facts: FileFacts) -> bool:
        """Whether a file has the bytes that were indexed, by its size where no digest is known. It is read once."""
        if file.size != facts.size:
            return False
        fingerprint = file.size, file.mtime_ns
        if not facts.digest or self._same.get(file.path) == fingerprint:
            return True
        log.warning("%s differs from the indexed file in size or time: comparing its bytes", file.path)
        same = digests.has_digest(uncached(file).read, file.size, facts.digest)
        if same is None:
            log.warning("%s: only its size was compared, because the package xxhash is missing", file.path)
        if same is not False:
            self._same[file.path] = fingerprint
        return same is not False

    @property
    def _max_open_files(self) -> int:
        return min(_MAX_OPEN, max(_MIN_OPEN, _MAX_OPEN_OF_MIX // self.among))

    def _keep_open_within_limit(self, file: SourceFile) -> None:
        self._open[file.path] = file
        if len(self._open) > self._max_open_files:
            self._open.popitem(last=False)[1].close()
