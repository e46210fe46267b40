"""Digests of the checkpoint format: leaves of chunks, the root of a file, digests of small objects.

A shard is cut into chunks of CHUNK bytes, counted from the first byte of the file. Each chunk has a *leaf* of
LEAF_BYTES bytes; the leaves lie behind the data in the same file. The *root* is a 128-bit digest over all leaves and
the file's size, so a single range can be verified alone and the manifest needs one line a shard.

The algorithm of leaves and roots is a named field of the format:

  xxh3      as fast as memory, from the `xxhash` package or from libxxhash itself (0.8 or later), which a node's
            system Python finds too; the default where every rank has it
  blake2b   standard library, on every machine (`b2sum -l 64` gives a leaf)

Small objects (manifest, extra.json, control pages) always use blake2b, so any reader can list and parse.
These digests find faults; they do not stop somebody who wants to forge a checkpoint.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Tuple, Union

from hyperpod_kit.environment import HPK_DIGEST
from hyperpod_kit.errors import DigestUnavailable

CHUNK = 16 * 1024 * 1024
LEAF_BYTES = 8
MOST_LEAVES = 16 * 1024 * 1024
"""Bytes of leaves that a reader holds whole: of a file of 32 TiB. A file of holes costs its owner nothing."""
DEFAULT = SMALL = "blake2b"
"""Of a run that names none, and of small objects always."""


class Algorithm(NamedTuple):
    """`leaf(bytes) -> 8 bytes`, `wide(bytes) -> 16 bytes`; both release the GIL on large input."""

    name: str
    leaf: Callable[[Any], bytes]
    wide: Callable[[Any], bytes]


def algorithm_name_or_environment_default(name: Optional[str]) -> Optional[str]:
    """Return the algorithm that the caller names, else the one in HPK_DIGEST; None when neither names one."""
    return name or os.environ.get(HPK_DIGEST) or None


def _blake2b_leaf(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _blake2b_wide(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises DigestUnavailable when this interpreter cannot compute it."""
    if name == "blake2b":
        return Algorithm(name, _blake2b_leaf, _blake2b_wide)
    if name == "xxh3":
        try:
            import xxhash
        except ImportError:
            library = load_library_functions()
            if library is None:
                raise DigestUnavailable(name, f"neither the xxhash package nor {LIBRARY} 0.8 is here") from None
            return Algorithm(name, library.leaf, library.wide)
        return Algorithm(name, xxhash.xxh3_64_digest, xxhash.xxh3_128_digest)
    raise DigestUnavailable(name, "this version of hyperpod-kit does not know it")


def small_object_digest(data: Union[bytes, bytearray]) -> str:
    """Return the digest of a small object as text, `blake2b:<32 hex digits>`."""
    return f"{SMALL}:{_blake2b_wide(data).hex()}"


def leaf_count(data_bytes: int, chunk: int = CHUNK) -> int:
    """How many leaves cover `data_bytes` bytes of header and data."""
    return -(-data_bytes // chunk)


def split_size_into_data_and_leaf_count(size: int, chunk: int = CHUNK) -> Tuple[int, int]:
    """(bytes of header and data, number of leaves) of a file of `size` bytes.

    It follows from the size alone, so a shard is verified before a byte of it is parsed.
    Raises ValueError when no file of that size exists in the format, or its leaves are more than are read.
    """
    count = -(-size // (chunk + LEAF_BYTES))
    if count * LEAF_BYTES > MOST_LEAVES:
        raise ValueError(f"{size} bytes in chunks of {chunk} have more leaves than are read")
    data_bytes = size - count * LEAF_BYTES
    if data_bytes <= 0 or leaf_count(data_bytes, chunk) != count:
        raise ValueError(f"no shard has {size} bytes")
    return data_bytes, count


def root_digest(alg: Algorithm, leaves: bytes, size: int) -> str:
    """Root digest of a file of `size` bytes as text, `<algorithm>:<32 hex digits>`."""
    return alg.name + ":" + alg.wide(leaves + struct.pack("<Q", size)).hex()


def leaves_of(alg: Algorithm, view: memoryview, *, chunk: int = CHUNK, threads: int = 1) -> bytes:
    """The leaves of `view` (header and data, without the leaves), concatenated."""
    starts = range(0, len(view), chunk)
    if threads <= 1 or len(starts) <= 1:
        return b"".join(alg.leaf(view[at : at + chunk]) for at in starts)
    from concurrent.futures import ThreadPoolExecutor  # not at the start of each program: it brings logging

    with ThreadPoolExecutor(threads) as pool:
        return b"".join(pool.map(lambda at: alg.leaf(view[at : at + chunk]), starts))


NAMES = ("xxh3", "blake2b")
"""Fastest first."""


def available_algorithms() -> Dict[str, bool]:
    """Which algorithms this interpreter can compute, fastest first."""
    is_available = {}
    for name in NAMES:
        try:
            algorithm(name)
            is_available[name] = True
        except DigestUnavailable:
            is_available[name] = False
    return is_available


def fastest_common_algorithm(*other_ranks: Iterable[str]) -> str:
    """The fastest algorithm that this interpreter has and, where given, that every other one has too.

    `other_ranks`: the names that each of the other ranks has. blake2b is everywhere.
    """
    return next(
        name
        for name, is_available in available_algorithms().items()
        if name == "blake2b" or (is_available and all(name in names for names in other_ranks))
    )


# XXH3 through the C library itself, for interpreters without the `xxhash` package.
#
# Ubuntu's and Debian's apt depends on libxxhash0, so a node's system Python has the library when it has nothing else.
# XXH3's output is final since 0.8.0 (https://github.com/Cyan4973/xxHash/releases/tag/v0.8.0); Ubuntu 20.04 has 0.7.3.

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
