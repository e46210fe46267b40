"""Open files of the sources: read by ranges, opened by path, closed when there are many, refused when they changed."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import Protocol

from hyperpod_kit.data.reading import objects
from hyperpod_kit.data.reading.chunks import ChunkedObject, ChunkStore, DiskCache
from hyperpod_kit.errors import ChangedFile

_MOST_OPEN = 128
MEMORY = 256 << 20
"""Bytes of objects that a process keeps."""


class FileFacts(Protocol):
    """What an index says of a file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...


class SourceFile(Protocol):
    """A file or an object that is open."""

    path: str
    size: int
    mtime_ns: int

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from `offset` on, fewer only at the end. Raises OSError."""

    def close(self) -> None:
        """Let it go."""


class LocalFile:
    """A file on any mounted file system."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._handle)
        self.size = found.st_size
        self.mtime_ns = found.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        data = os.pread(self._handle, length, offset)
        if len(data) == length or offset + len(data) >= self.size:
            return data
        parts = [data]
        done = len(data)
        while done < length:
            data = os.pread(self._handle, length - done, offset + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def will_need(self, offset: int, length: int) -> None:
        """Have the kernel fetch a range while something else is done."""
        os.posix_fadvise(self._handle, offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """See SourceFile."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def said_of_change(path: str, indexed: tuple[int, int], found: tuple[int, int]) -> str:
    """Both fingerprints of a file: (bytes, time of the last change in nanoseconds)."""
    then, now = (f"{size} bytes, changed at {time / 1e9:.6f}" for size, time in (indexed, found))
    return f"{path} has changed since it was indexed: expected {then}, found {now}"


def open_source(path: str) -> SourceFile:
    """Open a path or an `s3://` address. Raises OSError."""
    return objects.S3Object(path) if path.startswith("s3://") else LocalFile(path)


class SourceFiles:
    """Ranges of files, by what an index says of them. For one process; a child opens its own."""

    def __init__(self, memory: int = MEMORY, disk: DiskCache | None = None) -> None:
        self._chunking = (memory, disk)
        self._chunks: ChunkStore | None = None
        self._open: OrderedDict[str, SourceFile] = OrderedDict()
        self._pid = os.getpid()
        self.bytes_read = 0

    def read(self, facts: FileFacts, offset: int, length: int) -> bytes:
        """Bytes of a file. Raises ChangedFile when it is not the file that was indexed, OSError."""
        data = self._file(facts).read(offset, length)
        self.bytes_read += len(data)
        return data

    def will_need(self, facts: FileFacts, offset: int, length: int) -> None:
        """A range that is read soon, as a hint."""
        with contextlib.suppress(OSError):  # the read that follows says what is wrong
            file = self._file(facts)
            if isinstance(file, (LocalFile, ChunkedObject)):
                file.will_need(offset, length)

    def forget(self, path: str) -> None:
        """Close a file, to open it again by its path."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all of them."""
        for path in list(self._open):
            self.forget(path)
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def _opened(self, path: str) -> SourceFile:
        """A file, or an object whose chunks are kept."""
        if not path.startswith("s3://"):
            return LocalFile(path)
        if self._chunks is None:
            self._chunks = ChunkStore(*self._chunking)
        return ChunkedObject(path, self._chunks)

    def _file(self, facts: FileFacts) -> SourceFile:
        if self._pid != os.getpid():
            # After a fork: descriptors are shared with the parent, which may close them; what is known is not.
            self._open, self._chunks, self._pid = OrderedDict(), None, os.getpid()
        found = self._open.get(facts.path)
        if found is not None:
            self._open.move_to_end(facts.path)
            return found
        file = self._opened(facts.path)
        if (file.size, file.mtime_ns) != (facts.size, facts.mtime_ns):
            file.close()
            raise ChangedFile(said_of_change(facts.path, (facts.size, facts.mtime_ns), (file.size, file.mtime_ns)))
        self._open[facts.path] = file
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return file
