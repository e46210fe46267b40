"""Chunks from the rank that has read and proved them to those that want parts of them: all owners at once.

What all ranks want alike is broadcast. What some want is asked for: each rank tells each owner the byte ranges that it
wants, and is sent these and a digest of them. Nothing here depends on what was read, so no rank leaves others waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp.sharing import Share
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.load import view_of
from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.errors import CheckpointError

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
