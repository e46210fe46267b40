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
from typing import Any, TypeVar

import torch

from hyperpod_kit.checkpoint.dcp.sharing import Share, Work
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict, reason_or_none
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format import shard as shards
from hyperpod_kit.checkpoint.repository.format.manifest import Manifest
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.format.rows import decode_index_file as read_rows
from hyperpod_kit.checkpoint.repository.format.rows import encode_index_file as encode_rows
from hyperpod_kit.checkpoint.repository.read import stream, verify
from hyperpod_kit.checkpoint.repository.read.chunk_reader import Pump
from hyperpod_kit.checkpoint.repository.records import tombstone
from hyperpod_kit.checkpoint.repository.store.base import Store, StoreReader
from hyperpod_kit.checkpoint.transfer.load import TargetFault, view_of
from hyperpod_kit.checkpoint.transfer.restore_progress import ignore_bytes
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


# Chunks from the rank that has read and proved them to those that want parts of them: all owners at once.
#
# What all ranks want alike is broadcast. What some want is asked for: each rank tells each owner the byte ranges that
# it wants, and is sent these and a digest of them. Nothing here depends on what was read, so no rank leaves others
# waiting.

_MAX_NUMBERS = 1 << 24
"""Numbers in what one rank asks of another: its ranges in 16 chunks."""
_COUNT, _REQUEST, _DATA = 1, 2, 3
_DIGEST = 16
_MIN_SLOW_SECONDS = 10.0
"""Seconds of one exchange that are not worth a thought."""
_SLOWDOWN_FACTOR = 4.0

Ranges = list[tuple[int, int]]


def is_forwarding_too_slow(read_and_forward_seconds: Sequence[tuple[float, float]]) -> bool:
    """Return whether forwarding takes so long that ranks had better read the rest themselves.
    `read_and_forward_seconds`: each rank's seconds of reading and of forwarding."""
    read, sent = (max(seconds) for seconds in zip(*read_and_forward_seconds))
    return bool(sent > max(_MIN_SLOW_SECONDS, _SLOWDOWN_FACTOR * len(read_and_forward_seconds) * read))


class ChunkForwarder:
    """The rounds of one restore. Every rank goes through the same ones."""

    def __init__(self, ranks: Ranks, body: Manifest, requests: SliceRequests) -> None:
        self._ranks, self._body, self._requests = ranks, body, requests
        self._alg = digest.algorithm(body.digest)

    def exchange_chunks_and_list_corrupt(
        self, part: Sequence[Share], chunks: Mapping[Chunk, memoryview]
    ) -> list[Chunk]:
        """Forward `chunks`, which this rank owns, and receive what it wants of the others'; return the
        chunks that did not arrive as they were sent. A collective. Raises what torch.distributed raises
        when a peer has gone."""
        corrupt: list[Chunk] = []
        for share in part:
            if share.is_common:
                corrupt += self._broadcast_and_list_corrupt(share, chunks.get(share.chunk))
        return corrupt + self._exchange_ranges_and_list_corrupt(part, chunks)

    def _chunk_byte_range(self, chunk: Chunk) -> tuple[int, int]:
        number, chunk_index = chunk
        data_end, _ = digest.split_size_into_data_and_leaf_count(self._body.shards[number].size, self._body.chunk)
        return chunk_index * self._body.chunk, min((chunk_index + 1) * self._body.chunk, data_end)

    def _broadcast_and_list_corrupt(self, share: Share, owned_bytes: memoryview | None) -> list[Chunk]:
        begin, end = self._chunk_byte_range(share.chunk)
        ranges = self._requests.requested_ranges(share.chunk[0], begin, end, common=True)
        data = torch.empty(_total_bytes_of_ranges(ranges) + _DIGEST, dtype=torch.uint8, device="cpu")
        if owned_bytes is not None:
            self._pack_with_digest(view_of(data), ranges, owned_bytes, begin)
        self._ranks.broadcast_tensor(data, share.owner)
        if owned_bytes is not None or self._verify_and_deliver(share.chunk[0], ranges, view_of(data)):
            return []
        return [share.chunk]

    def _exchange_ranges_and_list_corrupt(
        self, part: Sequence[Share], chunks: Mapping[Chunk, memoryview]
    ) -> list[Chunk]:
        needs, requested_chunks = self._plan_needs_and_requested_chunks(part)
        requested_ranges = self._exchange_requests(needs, requested_chunks)
        incoming = {
            owner: [
                torch.empty(_total_bytes_of_ranges(ranges) + _DIGEST, dtype=torch.uint8, device="cpu")
                for _, ranges in requests
            ]
            for owner, requests in needs.items()
        }
        transfers = [
            self._ranks.start_receive(data, owner, _DATA) for owner, parts in incoming.items() for data in parts
        ]
        for rank, requested in requested_chunks.items():
            for chunk, ranges in zip(requested, requested_ranges[rank]):
                data = torch.empty(_total_bytes_of_ranges(ranges) + _DIGEST, dtype=torch.uint8, device="cpu")
                self._pack_with_digest(view_of(data), ranges, chunks[chunk], self._chunk_byte_range(chunk)[0])
                transfers.append(self._ranks.start_send(data, rank, _DATA))
        _wait(transfers)
        corrupt: list[Chunk] = []
        for owner, requests in needs.items():
            for (chunk, ranges), data in zip(requests, incoming[owner]):
                if not self._verify_and_deliver(chunk[0], ranges, view_of(data)):
                    corrupt.append(chunk)
        return corrupt

    def _plan_needs_and_requested_chunks(
        self, part: Sequence[Share]
    ) -> tuple[dict[int, list[tuple[Chunk, Ranges]]], dict[int, list[Chunk]]]:
        """Return (owner -> the ranges that this rank wants of its chunks, rank -> the chunks of which it
        will request parts from this one)."""
        local = self._ranks.rank
        needs: dict[int, list[tuple[Chunk, Ranges]]] = {}
        requested_chunks: dict[int, list[Chunk]] = {}
        for share in part:
            if share.owner == local:
                for rank in share.ranks:
                    if rank != local:
                        requested_chunks.setdefault(rank, []).append(share.chunk)
            elif local in share.ranks:
                ranges = self._requests.requested_ranges(share.chunk[0], *self._chunk_byte_range(share.chunk))
                needs.setdefault(share.owner, []).append((share.chunk, ranges))
        return needs, requested_chunks

    def _exchange_requests(
        self, needs: Mapping[int, list[tuple[Chunk, Ranges]]], requested_chunks: Mapping[int, list[Chunk]]
    ) -> dict[int, list[Ranges]]:
        """Send each owner the ranges that are wanted of its chunks, and return what each rank wants of
        this one's."""
        outgoing = {
            owner: torch.tensor(
                [number for _, ranges in requests for number in (len(ranges), *(at for span in ranges for at in span))],
                device="cpu",
            )
            for owner, requests in needs.items()
        }
        counts = {rank: torch.zeros(1, dtype=torch.int64, device="cpu") for rank in requested_chunks}
        _wait(
            [self._ranks.start_receive(count, rank, _COUNT) for rank, count in counts.items()]
            + [
                self._ranks.start_send(torch.tensor([len(numbers)], device="cpu"), owner, _COUNT)
                for owner, numbers in outgoing.items()
            ]
        )
        incoming = {
            rank: torch.zeros(_checked_count(int(count)), dtype=torch.int64, device="cpu")
            for rank, count in counts.items()
        }
        _wait(
            [self._ranks.start_receive(numbers, rank, _REQUEST) for rank, numbers in incoming.items()]
            + [self._ranks.start_send(numbers, owner, _REQUEST) for owner, numbers in outgoing.items()]
        )
        return {
            rank: _decode_ranges(numbers.tolist(), len(requested_chunks[rank])) for rank, numbers in incoming.items()
        }

    def _pack_with_digest(self, view: memoryview, ranges: Ranges, chunk: memoryview, begin: int) -> None:
        at = 0
        for first, last in ranges:
            view[at : at + last - first] = chunk[first - begin : last - begin]
            at += last - first
        view[at:] = self._alg.wide(view[:at])

    def _verify_and_deliver(self, shard_number: int, ranges: Ranges, view: memoryview) -> bool:
        computed: bytes = self._alg.wide(view[:-_DIGEST])
        if computed != bytes(view[-_DIGEST:]):
            return False
        at = 0
        for first, last in ranges:
            self._requests.copy_requested_bytes(shard_number, first, view[at : at + last - first])
            at += last - first
        return True


def _total_bytes_of_ranges(ranges: Ranges) -> int:
    return sum(last - first for first, last in ranges)


def _wait(transfers: Sequence[Any]) -> None:
    for transfer in transfers:
        transfer.wait()


def _checked_count(count: int) -> int:
    """Return `count`; raise CheckpointError for one that no rank of ours sends."""
    if not 0 <= count <= _MAX_NUMBERS:
        raise CheckpointError(f"a rank asks for {count} numbers of ranges, expected at most {_MAX_NUMBERS}")
    return count


def _decode_ranges(numbers: Sequence[int], count: int) -> list[Ranges]:
    decoded: list[Ranges] = []
    at = 0
    for _ in range(count):
        end = at + 1 + 2 * numbers[at]
        decoded.append(list(zip(numbers[at + 1 : end : 2], numbers[at + 2 : end : 2], strict=True)))
        at = end
    return decoded
