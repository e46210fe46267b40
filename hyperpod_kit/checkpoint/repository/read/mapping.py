"""A file's bytes in memory, shared and writable.

Python's own mmap object keeps a descriptor for as long as it lives (until 3.13 makes that a choice), and holds the
interpreter's lock while the kernel maps or unmaps, which for a large image is tens of milliseconds. This does neither.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Dict

_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_SLICE = 64 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_mapped: Dict[int, int] = {}
"""Address -> bytes of what `map_file_shared_writable` has mapped in this process."""


def map_file_shared_writable(fd: int, size: int) -> Any:
    """The first `size` bytes of a file, as a ctypes array: `memoryview` and `torch.frombuffer` look into it.

    `fd` may be closed afterwards. Unmapped when the array and everything that looks into it are gone, though not at the
    interpreter's end: a thread may still copy then. Raises OSError.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
    array = (ctypes.c_ubyte * size).from_address(address)
    _mapped[address] = size
    weakref.finalize(array, _unmap, address, size).atexit = False
    return array


def _unmap(address: int, size: int) -> None:
    _mapped.pop(address, None)
    _libc.munmap(address, size)


def drop_mappings_after_fork() -> None:
    """In a forked child: drop every mapping, so that the child does not keep its memory alive.

    The addresses stay reserved without access: objects that point there unmap them later, and must not hit
    what was mapped there since.
    """
    for address, size in _mapped.items():
        _libc.mmap(
            address, size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE, -1, 0
        )


def view_of(array: Any) -> memoryview:
    """Return a memoryview of all bytes of a mapping; release it to let the mapping go."""
    return memoryview(array).cast("B")


def fault_in(array: Any) -> None:
    """Put the file's pages into this process's page table (MADV_POPULATE_READ, Linux 5.14), changing no byte.

    The pages of a shared mapping in tmpfs are then writable too, and asking for them to be read takes the kernel half
    the time: it maps 16 at once. Before 5.14 they fault in as they are touched.
    """
    _populate(array, _MADV_POPULATE_READ)


def fault_in_private(array: Any) -> None:
    """The same for memory that is not shared, whole pages of it; what lies in it stays."""
    _populate(array, _MADV_POPULATE_WRITE)


def _populate(array: Any, advice: int) -> None:
    address = ctypes.addressof(array)
    for at in range(0, len(array), _SLICE):
        if _libc.madvise(address + at, min(_SLICE, len(array) - at), advice) != 0:
            break
