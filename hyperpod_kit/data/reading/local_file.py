"""A file of a mounted file system, by the kernel's own calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from hyperpod_kit.errors import DataError
from hyperpod_kit.untrusted import files, source_owner

_LONG_BYTES = 4 << 20


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to read, which another may have exchanged for a fifo since it was listed.

    Raises DataError for what is no regular file, OSError.
    """
    with open(path, "rb", opener=source_owner.open_nonblocking_as_source_owner) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise DataError(
                f"{path} is {files.describe_if_not_regular_file(os.fspath(path)) or 'no file'}, expected a file"
            )
        yield stream


class LocalFile:
    """A file on any mounted file system."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = source_owner.open_nonblocking_as_source_owner(path)
        status = os.fstat(self._handle)
        self.size = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self._hinted = False

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        if self._hinted and length >= _LONG_BYTES:
            # A long range is read from its beginning to its end, as the kernel guesses by itself.
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_NORMAL)
            self._hinted = False
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

    @property
    def handle(self) -> int:
        """Return its descriptor, as long as it is open."""
        return self._handle

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer, less at the end of the file alone; returns how many bytes came."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self._handle, [buffer[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def stat_fingerprint(self) -> tuple[int, int]:
        """Return (bytes, time of the last change in nanoseconds) of the open file as it is now."""
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns

    def prefetch_range(self, offset: int, length: int) -> None:
        """Have the kernel fetch a range while something else is done. From then on it does not guess by itself what
        comes: who gives hints knows that."""
        if not self._hinted:
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)
            self._hinted = True
        os.posix_fadvise(self._handle, offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """See SourceFile."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
