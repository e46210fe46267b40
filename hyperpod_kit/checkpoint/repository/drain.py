"""From the node's disk to storage: the same bytes, each chunk proved before it goes on.

A disk that returns something else than was written must not become a checkpoint that fails only when it is needed.
"""

from __future__ import annotations

import mmap
import threading

from hyperpod_kit.errors import CheckpointError, DigestMismatch

from . import digest, manifest, persist
from .failpoint import failpoint
from .local import Part
from .store.base import Reader, Store


def copy_shard(part: Part, source: Store, target: Store, attempt: str, how: persist.How) -> manifest.FileRecord:
    """Copy one rank's local shard into `attempt` of `target`; its record.

    Raises DigestMismatch, CheckpointError when the local file is not what was written, Stopped, OSError.
    """
    record, chunk = part.report.record, part.report.page.chunk
    reader = source.open_read(f"{part.attempt}/{record.file}")
    try:
        if reader.size != record.size:
            raise CheckpointError(f"local {record.file} has {reader.size} bytes, expected {record.size}")
        return _copy(reader, record, chunk, target, attempt, how)
    finally:
        reader.close()


def _copy(reader: Reader, record: manifest.FileRecord, chunk: int, target: Store, attempt: str,
          how: persist.How) -> manifest.FileRecord:
    alg = digest.algorithm(record.root.partition(":")[0])
    data_end, count = digest.split(record.size, chunk)
    leaves = bytearray(record.size - data_end)
    _fill(reader, memoryview(leaves), data_end, record.file)
    found = digest.root(alg, bytes(leaves), record.size)
    if found != record.root:
        raise DigestMismatch(f"local {record.file} (digests)", record.root, found)
    buffers = threading.local()
    last = (count - 1) * chunk

    def check(view: memoryview, at: int) -> None:
        place = at // chunk * digest.LEAF_BYTES
        expected, actual = bytes(leaves[place:place + digest.LEAF_BYTES]), alg.leaf(view)
        if actual != expected:
            raise DigestMismatch(f"local {record.file} bytes {at}..{at + len(view)}", expected.hex(), actual.hex())

    def bring(at: int, end: int) -> memoryview:
        """[at, end) in this thread's buffer: page-aligned, so that it can be read and written past the cache."""
        if not hasattr(buffers, "view"):
            buffers.view = memoryview(mmap.mmap(-1, min(chunk, record.size) + len(leaves) + mmap.PAGESIZE))
        view: memoryview = buffers.view[:end - at]
        _fill(reader, view, at, record.file)
        check(view[:min(end, data_end) - at], at)
        failpoint("upload.slice")
        return view

    # The leaves go with the last chunk.
    pieces = [(at, record.size if at == last else at + chunk) for at in range(0, data_end, chunk)]
    failpoint("upload.begin")
    persist.write_file(target, f"{attempt}/{record.file}", record.size, pieces, bring, how)
    failpoint("upload.done")
    return record


def _fill(reader: Reader, view: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(view):
        got = reader.read_into(view[done:], offset + done)
        if got <= 0:
            raise CheckpointError(f"local {name} ends at byte {offset + done}")
        done += got
