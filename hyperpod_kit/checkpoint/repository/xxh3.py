"""XXH3 through the C library itself, for interpreters without the `xxhash` package.

Ubuntu's and Debian's apt depends on libxxhash0, so a node's system Python has the library when it has nothing else.
XXH3's output is final since 0.8.0 (https://github.com/Cyan4973/xxHash/releases/tag/v0.8.0); Ubuntu 20.04 has 0.7.3.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any, Callable, NamedTuple, Optional

LIBRARY = "libxxhash.so.0"
FINAL = 800
"""XXH_versionNumber() of 0.8.0: major * 10000 + minor * 100 + release."""


class Functions(NamedTuple):
    """`leaf(bytes) -> 8 bytes`, `wide(bytes) -> 16 bytes`: the canonical (big endian) forms. Both release the GIL."""

    leaf: Callable[[Any], bytes]
    wide: Callable[[Any], bytes]


class _Buffer(ctypes.Structure):
    """Py_buffer of the C API; the only way to the address of read-only memory."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class _Wide(ctypes.Structure):
    """XXH128_hash_t."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_get.restype = ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)
_release.restype = None


def _call_on_buffer(function: Any, data: Any) -> Any:
    """Return function(address, length) of contiguous `data`. Raise BufferError for other memory, TypeError."""
    buffer = _Buffer()
    _get(data, ctypes.byref(buffer), 0)  # 0 is PyBUF_SIMPLE; an error is raised by ctypes.pythonapi
    try:
        return function(buffer.buf, buffer.len)
    finally:
        _release(ctypes.byref(buffer))


@functools.lru_cache(maxsize=1)
def load_library_functions() -> Optional[Functions]:
    """The library's functions; None when it is not there or older than the final XXH3."""
    try:
        library = ctypes.CDLL(LIBRARY)
        library.XXH_versionNumber.restype = ctypes.c_uint
        if library.XXH_versionNumber() < FINAL:
            return None
        narrow, wide = library.XXH3_64bits, library.XXH3_128bits
    except (OSError, AttributeError):
        return None
    for function, result in ((narrow, ctypes.c_uint64), (wide, _Wide)):
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        function.restype = result

    def wide_digest(data: Any) -> bytes:
        halves = _call_on_buffer(wide, data)
        return struct.pack(">QQ", halves.high, halves.low)

    return Functions(lambda data: struct.pack(">Q", _call_on_buffer(narrow, data)), wide_digest)
