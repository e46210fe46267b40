"""From the node's disk to storage: the same bytes, each chunk proved before it goes on.

A disk that returns something else than was written must not become a checkpoint that fails only when it is needed.
"""

from __future__ import annotations

import threading

from hyperpod_kit.checkpoint.agent import persist
from hyperpod_kit.checkpoint.agent.local import Part
from hyperpod_kit.checkpoint.repository import manifest, stream
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import Store


def copy_shard(
    part: Part, source: Store, target: Store, checkpoint_id: str, options: persist.WriteOptions
) -> manifest.FileRecord:
    """Copy one rank's local shard into `checkpoint_id` of `target`; its record.

    Raises DigestMismatch, CheckpointError when the local file is not what was written, Stopped, OSError.
    """
    record, chunk = part.report.record, part.report.page.shard.chunk
    reader = source.open_read(f"{part.checkpoint_id}/{record.file}")
    try:
        shard = stream.Shard(reader, record.size, record.root, name=f"local {record.file}", chunk=chunk)
        _copy_verifying_chunks(shard, target, f"{checkpoint_id}/{record.file}", options)
    finally:
        reader.close()
    return record


def _copy_verifying_chunks(shard: stream.Shard, target: Store, name: str, options: persist.WriteOptions) -> None:
    last = shard.chunks - 1
    # The leaves go with the last chunk.
    ends = [shard.chunk_bounds(index)[1] for index in range(last)] + [shard.size]
    ranges = [(shard.chunk_bounds(index)[0], end) for index, end in enumerate(ends)]
    longest = max(end - begin for begin, end in ranges)
    buffers = threading.local()

    def read_range(begin: int, end: int) -> memoryview:
        """[begin, end) in this thread's buffer: page-aligned, so that it can be read and written past the cache."""
        if not hasattr(buffers, "buffer"):
            buffers.buffer = stream.Buffer(longest + stream.PAGE)
        view = shard.read_unverified_into(buffers.buffer.view, begin, end)
        index = begin // shard.chunk
        shard.verify_chunk(index, view[: shard.chunk_bounds(index)[1] - begin])
        failpoint("upload.slice")
        return view

    failpoint("upload.begin")
    persist.write_file(target, name, shard.size, ranges, read_range, options)
    failpoint("upload.done")
