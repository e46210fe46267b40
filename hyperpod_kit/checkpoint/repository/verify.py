"""Read and verify: no byte is handed on before its digest was compared."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Optional

from hyperpod_kit.errors import CheckpointError, DigestMismatch

from . import digest, layout, manifest
from .store.base import Store
from .store.open import Where, as_store

_THREADS = max(1, min(8, os.cpu_count() or 1))

ReadInto = Callable[[memoryview, int], int]


def verify_bytes(read_into: ReadInto, size: int, root: str, *, name: str, chunk: int = digest.CHUNK,
                 sink: Optional[memoryview] = None, threads: int = _THREADS) -> None:
    """Stream a file of `size` bytes through its digests; put the bytes into `sink` (of `size` bytes) when given.

    `read_into(view, offset)` fills a part of the view from the offset and returns how many bytes it got.
    Raises DigestMismatch (naming the chunk), CheckpointError when the file is short, DigestUnavailable, OSError.
    """
    alg = digest.algorithm(root.partition(":")[0])
    try:
        data_end, count = digest.split(size, chunk)
    except ValueError as err:
        raise CheckpointError(f"{name}: {err}") from None
    leaves = sink[data_end:] if sink is not None else memoryview(bytearray(size - data_end))
    _fill(read_into, leaves, data_end, name)
    found = digest.root(alg, bytes(leaves), size)
    if found != root:
        raise DigestMismatch(f"{name} (digests)", root, found)

    def check(index: int) -> None:
        begin = index * chunk
        end = min(begin + chunk, data_end)
        view = sink[begin:end] if sink is not None else memoryview(bytearray(end - begin))
        _fill(read_into, view, begin, name)
        expected = bytes(leaves[index * digest.LEAF_BYTES:(index + 1) * digest.LEAF_BYTES])
        actual = alg.leaf(view)
        if actual != expected:
            raise DigestMismatch(f"{name} bytes {begin}..{end}", f"{alg.name}:{expected.hex()}",
                                 f"{alg.name}:{actual.hex()}")

    if threads <= 1 or count == 1:
        for index in range(count):
            check(index)
        return
    with ThreadPoolExecutor(min(threads, count)) as pool:
        futures = [pool.submit(check, index) for index in range(count)]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def _fill(read_into: ReadInto, view: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(view):
        got = read_into(view[done:], offset + done)
        if got <= 0:
            raise CheckpointError(f"{name} ends at byte {offset + done}")
        done += got


def verify_file(store: Store, attempt: str, record: manifest.FileRecord, *, chunk: int = digest.CHUNK,
                sink: Optional[memoryview] = None, threads: int = _THREADS) -> None:
    """Verify a shard in a store against its record, into `sink` when given. Raises as `verify_bytes`."""
    reader = store.open_read(f"{attempt}/{record.file}")
    try:
        if reader.size != record.size:
            raise CheckpointError(f"{record.file} has {reader.size} bytes, expected {record.size}")
        verify_bytes(reader.read_into, record.size, record.root, name=record.file, chunk=chunk, sink=sink,
                     threads=threads)
    finally:
        reader.close()


def read_manifest(where: Where, attempt: str) -> manifest.Manifest:
    """The manifest of an attempt, checked against the directory's name.

    Raises FileNotFoundError when the attempt was never committed, CheckpointError when it is damaged, OSError.
    """
    return parse_manifest(as_store(where).read(f"{attempt}/{layout.MANIFEST_FILE}"), attempt)


def parse_manifest(data: bytes, attempt: str) -> manifest.Manifest:
    """The manifest in these bytes, which were in the directory `attempt`. Raises CheckpointError."""
    found = manifest.decode(data)
    name = layout.parse_attempt(attempt)
    if name is None or (name.epoch, name.seq, name.step) != (found.epoch, found.seq, found.step):
        raise CheckpointError(f"{layout.MANIFEST_FILE} is of epoch {found.epoch}, seq {found.seq}, step {found.step}: "
                              "it does not belong into this directory")
    return found


def read_extra(where: Where, attempt: str, record: manifest.FileRecord) -> bytes:
    """A small file of an attempt (extra.json, index.bin), verified. Raises DigestMismatch, OSError."""
    data = as_store(where).read(f"{attempt}/{record.file}")
    found = digest.small(data)
    if found != record.root:
        raise DigestMismatch(record.file, record.root, found)
    return data


def verify_attempt(where: Where, attempt: str, *, threads: int = _THREADS) -> manifest.Manifest:
    """Verify every byte of a committed attempt.

    Raises DigestUnavailable when it cannot be checked here, CheckpointError (DigestMismatch) or OSError when it is
    not what was committed.
    """
    store = as_store(where)
    found = read_manifest(store, attempt)
    digest.algorithm(found.digest)
    for small in (found.extra, found.index):
        if small is not None:
            read_extra(store, attempt, small)
    for record in found.shards:
        verify_file(store, attempt, record, chunk=found.chunk, threads=threads)
    return found


def reason_of(err: BaseException) -> str:
    """One line that says why a candidate was rejected."""
    if isinstance(err, FileNotFoundError):
        return f"{os.path.basename(str(err.filename))} is missing"
    if isinstance(err, OSError):
        return f"cannot be read: {err.strerror or err} ({os.path.basename(str(err.filename or ''))})"
    return str(err)
