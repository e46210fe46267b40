"""How much of a file the page cache holds: a read of what is there measures memory, not storage."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

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
