"""Read any slices of any tensors of a committed attempt: each chunk from storage once, by one rank.

A rank says which slices it wants and where they go. The slices become byte ranges, the ranges chunks; a chunk that
several ranks need is read and proved by one of them, who hands on to each other one what that one wants of it. What
does not arrive as it was sent is read from storage by who wants it, and so is all the rest where handing on turns out
to be much slower than reading.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp.chunk_forwarding import ChunkForwarder, is_forwarding_too_slow
from hyperpod_kit.checkpoint.dcp.sharing import Work
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.load import TargetFault
from hyperpod_kit.checkpoint.reason import Reason, Verdict, reason_or_none
from hyperpod_kit.checkpoint.repository import shard as shards
from hyperpod_kit.checkpoint.repository import stream, tombstone, verify
from hyperpod_kit.checkpoint.repository.chunk_reader import Pump
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.rows import decode_index_file as read_rows
from hyperpod_kit.checkpoint.repository.rows import encode_index_file as encode_rows
from hyperpod_kit.checkpoint.repository.store.base import Store, StoreReader
from hyperpod_kit.checkpoint.restore_progress import ignore_bytes
from hyperpod_kit.errors import CheckpointError, DigestUnavailable

T = TypeVar("T")

NO_CACHED_CHUNKS: Mapping[Chunk, memoryview] = {}


class OpenCheckpoint:
    """An attempt that is open for reading: its manifest, and its shards, opened when they are needed."""

    def __init__(self, store: Store, checkpoint_id: str, body: Manifest) -> None:
        self.store = store
        self.name = checkpoint_id
        self.manifest = body
        self._open: dict[int, tuple[StoreReader, stream.Shard]] = {}

    def shard(self, shard_number: int) -> stream.Shard:
        """Open a shard, once, and return it. Raises DigestMismatch, CheckpointError, OSError."""
        if shard_number not in self._open:
            if shard_number >= self.manifest.world:
                raise CheckpointError(f"its index names shard {shard_number} of {self.manifest.world}")
            record = self.manifest.shards[shard_number]
            reader = self.store.open_read(f"{self.name}/{record.file}")
            try:
                opened_shard = stream.Shard(
                    reader, record.size, record.root, name=record.file, chunk=self.manifest.chunk
                )
            except BaseException:
                reader.close()
                raise
            self._open[shard_number] = reader, opened_shard
        return self._open[shard_number][1]

    def close(self) -> None:
        for reader, _ in self._open.values():
            reader.close()
        self._open.clear()

    def read_piece_rows(self) -> Rows:
        """Read where every piece of every tensor lies: from index.bin, checked; from the headers where
        there is none. Raises as `shard`."""
        return read_rows(self.read_or_compute_index_bytes())

    def read_or_compute_index_bytes(self) -> bytes:
        """Read index.bin, or compute its bytes from the headers where there is none. Raises as `shard`."""
        record = self.manifest.index
        if record is not None:
            return verify.read_verified_small_file(self.store, self.name, record)
        return encode_rows({number: self._read_shard_header(number) for number in range(len(self.manifest.shards))})

    def _read_shard_header(self, shard_number: int) -> Sequence[shards.Placed]:
        opened = self.shard(shard_number)
        first = memoryview(opened.read_verified(0, min(4096, opened.data_end)))
        length = shards.head_size(first)
        if length > opened.data_end:
            raise CheckpointError(f"{opened.name}: a header of {length} bytes in a file of {opened.size}")
        return shards.parse(memoryview(opened.read_verified(0, length)), opened.size).tensors


@contextlib.contextmanager
def open_checkpoint(store: Store, checkpoint_id: str, body: Manifest) -> Iterator[OpenCheckpoint]:
    """Open a committed checkpoint for reading; its files are closed at the end of the block."""
    checkpoint = OpenCheckpoint(store, checkpoint_id, body)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def read_and_broadcast_rows(ranks: Ranks, checkpoint: OpenCheckpoint) -> Rows | Reason:
    """Read on rank 0 where every tensor lies, broadcast it and return it on all ranks; or the reason
    why that failed. A collective."""
    encoded: bytes | Reason = b""
    if ranks.rank == 0:
        encoded = error_as_reason(checkpoint.read_or_compute_index_bytes)
    problem = ranks.gather_first_reason(reason_or_none(encoded))
    if problem is not None:
        return problem
    data: bytes = ranks.broadcast(encoded)
    rows = error_as_reason(lambda: read_rows(data))
    problem = ranks.gather_first_reason(reason_or_none(rows))
    if problem is None:
        return rows
    return problem


def error_as_reason(work: Callable[[], T]) -> T | Reason:
    """Run `work` and return its result; an error is returned as a Reason, so that no rank leaves the
    others waiting.

    Raises DigestUnavailable, which is no verdict on what was read.
    """
    try:
        return work()
    except DigestUnavailable:
        raise
    except (TargetFault, MemoryError) as err:
        return Reason(str(err) or type(err).__name__, Verdict.UNFILLED)
    except (CheckpointError, OSError) as err:
        damaged, unread = tombstone.proves_damage(err), verify.is_storage_failure(err)
        if damaged:
            verdict = Verdict.DAMAGED
        elif unread:
            verdict = Verdict.UNREAD
        else:
            verdict = Verdict.UNUSABLE
        return Reason(verify.describe_failure(err), verdict)
    except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
        return Reason(f"{type(err).__name__}: {err}")


def read_and_distribute(
    ranks: Ranks,
    checkpoint: OpenCheckpoint,
    work: Work,
    requests: SliceRequests,
    cached: Mapping[Chunk, memoryview] = NO_CACHED_CHUNKS,
    on_read: Callable[[int], None] = ignore_bytes,
) -> Reason | None:
    """Read and check the chunks of this rank's work, fill its own targets and forward them to the
    ranks that want parts of them; return None, or the reason of the first failure, the same on all
    ranks. A collective.

    `cached`: chunks that this rank has read and proved already, those that it said it has when work
    was divided. `on_read` is called with the bytes of each chunk that this rank reads, in any
    thread.
    """
    reader = _ChunkReading(checkpoint, requests, cached, on_read)
    problem = ranks.gather_first_reason(
        reason_or_none(error_as_reason(lambda: reader.read_proved_and_copy_to_targets(work.alone[ranks.rank])))
    )
    rounds, retries = work.split_shared_into_bounded_rounds(), list[Chunk]()
    forwarder = ChunkForwarder(ranks, checkpoint.manifest, requests)
    while rounds and problem is None:
        part = rounds.pop(0)
        owned_chunks = [share.chunk for share in part if share.owner == ranks.rank]
        started_at = time.monotonic()
        chunks = error_as_reason(partial(reader.read_proved_and_copy_to_targets, owned_chunks, return_bytes=True))
        reading = time.monotonic() - started_at
        problem = ranks.gather_first_reason(reason_or_none(chunks))
        if problem is not None:
            break
        started_at = time.monotonic()
        if not isinstance(chunks, dict):
            chunks = {}
        retries += forwarder.exchange_chunks_and_list_corrupt(part, chunks)
        if is_forwarding_too_slow(ranks.gather((reading, time.monotonic() - started_at))):
            for shares in rounds:
                retries += [share.chunk for share in shares if share.is_wanted_by(ranks.rank)]
            rounds = []
    if problem is None:
        problem = ranks.gather_first_reason(
            reason_or_none(error_as_reason(lambda: reader.read_proved_and_copy_to_targets(retries)))
        )
    if problem is None:
        problem = ranks.gather_first_reason(error_as_reason(requests.run_staged_copies))
    return problem


class _ChunkReading:
    """Chunks of an attempt from storage, or from what this rank has already, proved, to where they are wanted."""

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        requests: SliceRequests,
        cached: Mapping[Chunk, memoryview],
        on_read: Callable[[int], None],
    ) -> None:
        self._checkpoint, self._requests, self._cached, self._on_read = checkpoint, requests, cached, on_read

    def read_proved_and_copy_to_targets(
        self, chunks: Iterable[Chunk], *, return_bytes: bool = False
    ) -> dict[Chunk, memoryview]:
        """Read and check chunks and copy what is requested of them into the targets; return their bytes if
        `return_bytes`. Raises DigestMismatch, CheckpointError, OSError."""
        chunk_data: dict[Chunk, memoryview] = {}
        jobs = []
        number_of: dict[str, int] = {}
        for number, chunk_index in chunks:
            cached = self._cached.get((number, chunk_index))
            if cached is not None:
                self._requests.copy_requested_bytes(number, chunk_index * self._checkpoint.manifest.chunk, cached)
                chunk_data[number, chunk_index] = cached
                self._on_read(len(cached))
                continue
            shard = self._checkpoint.shard(number)
            jobs.append((shard, chunk_index))
            number_of[shard.name] = number

        def deliver(opened: stream.Shard, begin: int, view: memoryview) -> None:
            number = number_of[opened.name]
            self._requests.copy_requested_bytes(number, begin, view)
            self._on_read(len(view))
            if return_bytes:
                chunk_data[number, begin // opened.chunk] = memoryview(bytearray(view))

        with Pump(jobs) as pump:
            pump.deliver_all_and_wait(deliver)
        return chunk_data
