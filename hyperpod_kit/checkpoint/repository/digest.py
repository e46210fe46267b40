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

import hashlib
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Tuple, Union

from hyperpod_kit.checkpoint.repository import xxh3
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
            library = xxh3.load_library_functions()
            if library is None:
                raise DigestUnavailable(name, f"neither the xxhash package nor {xxh3.LIBRARY} 0.8 is here") from None
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
