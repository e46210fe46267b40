"""Read and verify: no byte is handed on before its digest was compared."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional

from hyperpod_kit.errors import CheckpointError, DigestMismatch, DigestUnavailable

from . import digest, layout, manifest

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


def verify_file(path: str, record: manifest.FileRecord, *, chunk: int = digest.CHUNK,
                sink: Optional[memoryview] = None, threads: int = _THREADS) -> None:
    """Verify a shard on disk against its record, into `sink` when given. Raises as `verify_bytes`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size != record.size:
            raise CheckpointError(f"{record.file} has {size} bytes, expected {record.size}")
        verify_bytes(lambda view, at: os.preadv(fd, [view], at), size, record.root, name=record.file, chunk=chunk,
                     sink=sink, threads=threads)
    finally:
        os.close(fd)


def read_manifest(root: str, attempt: str) -> manifest.Manifest:
    """The manifest of an attempt, checked against the directory's name.

    Raises FileNotFoundError when the attempt was never committed, CheckpointError when it is damaged, OSError.
    """
    with open(os.path.join(root, attempt, layout.MANIFEST_FILE), "rb") as file:
        found = manifest.decode(file.read())
    name = layout.parse_attempt(attempt)
    if name is None or (name.epoch, name.seq, name.step) != (found.epoch, found.seq, found.step):
        raise CheckpointError(f"{layout.MANIFEST_FILE} is of epoch {found.epoch}, seq {found.seq}, step {found.step}: "
                              "it does not belong into this directory")
    return found


def read_extra(root: str, attempt: str, record: manifest.FileRecord) -> bytes:
    """extra.json, verified. Raises DigestMismatch, OSError."""
    with open(os.path.join(root, attempt, record.file), "rb") as file:
        data = file.read()
    found = digest.small(data)
    if found != record.root:
        raise DigestMismatch(record.file, record.root, found)
    return data


def verify_attempt(root: str, attempt: str, *, threads: int = _THREADS) -> manifest.Manifest:
    """Verify every byte of a committed attempt.

    Raises DigestUnavailable when it cannot be checked here, CheckpointError (DigestMismatch) or OSError when it is
    not what was committed.
    """
    found = read_manifest(root, attempt)
    digest.algorithm(found.digest)
    read_extra(root, attempt, found.extra)
    for record in found.shards:
        verify_file(os.path.join(root, attempt, record.file), record, chunk=found.chunk, threads=threads)
    return found


def reason_of(err: BaseException) -> str:
    """One line that says why a candidate was rejected."""
    if isinstance(err, FileNotFoundError):
        return f"{os.path.basename(str(err.filename))} is missing"
    if isinstance(err, OSError):
        return f"cannot be read: {err.strerror or err} ({os.path.basename(str(err.filename or ''))})"
    return str(err)


def problems_of(root: str, attempts: List[str]) -> List[Any]:
    """(attempt, None or why it is invalid) for each. Raises DigestUnavailable: that is no verdict."""
    out: List[Any] = []
    for attempt in attempts:
        try:
            verify_attempt(root, attempt)
            out.append((attempt, None))
        except DigestUnavailable:
            raise
        except (CheckpointError, OSError) as err:
            out.append((attempt, reason_of(err)))
    return out
