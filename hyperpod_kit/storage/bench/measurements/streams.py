"""Own streams: so many threads that write or read one file each, to the fsync; seconds of the slowest.

Bytes cannot be compressed, and come from memory that is there. Reads bypass the page cache (O_DIRECT) where the file
system lets them, and drop it first where not; what is still in it is said beside the rate.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Callable, NamedTuple

from hyperpod_kit.untrusted import by_descriptor

BLOCK = 4 * 2**20


class StreamSample(NamedTuple):
    """A timed run.

    `kind`: write or read; `size`: bytes of all streams; `direct`: past the page cache; `cached`: share of what was
    read that memory had already.
    """

    kind: str
    streams: int
    size: int
    seconds: float
    direct: bool
    cached: float = 0.0

    @property
    def rate(self) -> float:
        """Compute the bytes a second of all streams together."""
        return self.size / self.seconds


def write_streams(directory: Path, streams: int, file_size: int) -> StreamSample:
    """Write `streams` new files of `file_size` bytes (whole blocks) at once, and sync them. Raises OSError."""
    with mmap.mmap(-1, BLOCK) as block, memoryview(block) as view:
        view[:] = os.urandom(BLOCK)
        direct = [False] * streams

        def write_file(number: int, stop: threading.Event) -> None:
            fd, direct[number] = _open_direct_or_cached(directory / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                remaining = file_size
                while remaining > 0 and not stop.is_set():
                    remaining -= os.write(fd, view[: min(BLOCK, remaining)])
                os.fsync(fd)
            finally:
                os.close(fd)  # Mountpoint uploads here, and here it says that it failed

        seconds = _run_threads_and_time(write_file, streams)
    return StreamSample("write", streams, streams * file_size, seconds, all(direct))


def read_streams(directory: Path, streams: int) -> StreamSample:
    """Read the files that `write_streams` made, each by a thread. Raises OSError."""
    paths = [directory / str(number) for number in range(streams)]
    cached = []
    for path in paths:
        drop_pages(path)
        with contextlib.suppress(OSError):  # a FUSE mount without mmap
            cached.append(resident_share(path))
    sizes, direct = [0] * streams, [False] * streams

    def read_file(number: int, stop: threading.Event) -> None:
        fd, direct[number] = _open_direct_or_cached(paths[number], os.O_RDONLY)
        try:
            with mmap.mmap(-1, BLOCK) as block, memoryview(block) as view:
                while not stop.is_set() and (got := os.readv(fd, [view])):
                    sizes[number] += got
        finally:
            os.close(fd)

    seconds = _run_threads_and_time(read_file, streams)
    return StreamSample("read", streams, sum(sizes), seconds, all(direct), max(cached, default=0.0))


def _open_direct_or_cached(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file; returns a descriptor, and whether it is past the page cache."""
    try:
        return by_descriptor.open_own_or_root_file(path, flags | os.O_DIRECT, 0o600), True
    except FileExistsError:
        raise
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            if flags & os.O_CREAT:
                by_descriptor.unlink(path)  # some file systems make the file and refuse O_DIRECT then
        return by_descriptor.open_own_or_root_file(path, flags, 0o600), False


def _run_threads_and_time(work: Callable[[int, threading.Event], None], count: int) -> float:
    """Run threads; returns the seconds from when all may begin until the last is done. Raises what one of them raised.

    When the wait for them ends early (Ctrl-C), they are told to stop and waited for: what they write to is removed
    next, and what they write from is freed.
    """
    errors: list[BaseException] = []
    start, stop = threading.Barrier(count + 1), threading.Event()
    # Not Thread.join: interrupted once, Python 3.11's takes the thread for ended.
    finished = [threading.Event() for _ in range(count)]

    def run_guarded(number: int) -> None:
        try:
            start.wait()
            work(number, stop)
        except BaseException as err:
            errors.append(err)
        finally:
            finished[number].set()

    for number in range(count):
        threading.Thread(target=run_guarded, args=(number,), daemon=True).start()
    try:
        start.wait()
        started_at = time.perf_counter()
        for event in finished:
            event.wait()
        seconds = time.perf_counter() - started_at
    finally:
        stop.set()
        start.abort()
        for event in finished:
            event.wait()
    if errors:
        raise errors[0]
    return max(seconds, 1e-9)


# How much of a file the page cache holds: a read of what is there measures memory, not storage.

_libc = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


def resident_share(path: Path) -> float:
    """Measure the share of the file's pages in the page cache, 0 to 1. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if not size:
            return 0.0
        # Private, so that ctypes gets an address: nothing is ever written to it.
        with mmap.mmap(fd, size, access=mmap.ACCESS_COPY) as mapping:
            pages = -(-size // _PAGE)
            residency = (ctypes.c_ubyte * pages)()
            first = ctypes.c_char.from_buffer(mapping)
            try:
                if _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), residency):
                    error_number = ctypes.get_errno()
                    raise OSError(error_number, os.strerror(error_number), str(path))
            finally:
                del first
            return sum(bit & 1 for bit in residency) / pages
    finally:
        os.close(fd)


def drop_pages(path: Path) -> None:
    """Ask the kernel to forget the file's pages, which are on storage. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
