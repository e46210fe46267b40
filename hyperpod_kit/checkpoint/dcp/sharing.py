"""Who reads which chunk, where several ranks want parts of it: every rank comes to the same, and each chunk is read
once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository.format import digest

_READS_PER_ROUND = 4
"""Chunks that a rank reads between two exchanges, at most."""
_RECEIVED_PER_ROUND = 16
"""Chunks that a rank is handed parts of in one exchange, at most: with `_READS_PER_ROUND` it bounds the memory."""


class Share(NamedTuple):
    """A chunk that others need too, and the one that reads it.

    `ranks` want parts of it, the owner perhaps none. Of a chunk for `is_common` all ranks want a part alike as well.
    """

    chunk: Chunk
    owner: int
    ranks: tuple[int, ...]
    is_common: bool = False

    def is_wanted_by(self, rank: int) -> bool:
        """Return whether that rank wants a part of the chunk."""
        return self.is_common or rank in self.ranks


class Work(NamedTuple):
    """Who reads what: `alone[rank]` are the chunks that only that rank needs, `shared` the others in one order."""

    alone: tuple[tuple[Chunk, ...], ...]
    shared: tuple[Share, ...]

    def chunks_read_by(self, rank: int) -> list[Chunk]:
        """Return the chunks that this rank reads, or has read."""
        return [*self.alone[rank], *(share.chunk for share in self.shared if share.owner == rank)]

    def split_shared_into_bounded_rounds(self) -> list[list[Share]]:
        """Split the shared chunks into rounds, so that no rank reads, or receives, more in one round than
        it has room for."""
        schedule: list[list[Share]] = []
        reads, wants = [0] * len(self.alone), [0] * len(self.alone)
        broadcasts = 0
        for share in self.shared:
            busy_rounds = [wants[rank] // _RECEIVED_PER_ROUND for rank in share.ranks]
            if share.is_common:
                busy_rounds.append(broadcasts // _RECEIVED_PER_ROUND)
            number = max([reads[share.owner] // _READS_PER_ROUND, *busy_rounds])
            reads[share.owner] = max(reads[share.owner], number * _READS_PER_ROUND) + 1
            for rank in share.ranks:
                wants[rank] = max(wants[rank], number * _RECEIVED_PER_ROUND) + 1
            if share.is_common:
                broadcasts = max(broadcasts, number * _RECEIVED_PER_ROUND) + 1
            schedule += [[] for _ in range(number + 1 - len(schedule))]
            schedule[number].append(share)
        return schedule


def assign_readers(
    needs: Sequence[Iterable[Chunk]],
    common: Collection[Chunk] = (),
    cached: Sequence[Collection[Chunk]] = (),
) -> Work:
    """Assign each chunk to one of the ranks that need it, about equally many to each. The same on all
    ranks.

    `common`: chunks of which all ranks need a part alike. `cached[rank]`: what that rank has read
    already, needed or not.
    """
    ranks_by_chunk = _ranks_by_chunk(needs, common)
    common_chunks: set[Chunk] = set()
    if len(needs) > 1:
        common_chunks.update(common)
    reader_of = {chunk: rank for rank, chunks in enumerate(cached) for chunk in chunks}
    load = [0] * len(needs)
    alone: list[list[Chunk]] = [[] for _ in needs]
    shared: list[Share] = []
    rest: list[Chunk] = []
    for chunk, ranks in sorted(ranks_by_chunk.items()):
        owner = reader_of.get(chunk)
        if owner is None and len(ranks) == 1:
            owner = ranks[0]
        if owner is None and len(needs) == 1:
            owner = 0
        if owner is None:
            rest.append(chunk)
        elif chunk in common_chunks or ranks not in ([owner], []):
            shared.append(Share(chunk, owner, tuple(ranks), chunk in common_chunks))
        else:
            alone[owner].append(chunk)
        if owner is not None:
            load[owner] += chunk not in reader_of
    for chunk in rest:
        candidates = ranks_by_chunk[chunk] or range(len(needs))
        owner = min(candidates, key=lambda rank: (load[rank], rank))
        load[owner] += 1
        shared.append(Share(chunk, owner, tuple(ranks_by_chunk[chunk]), chunk in common_chunks))
    return Work(tuple(map(tuple, alone)), tuple(sorted(shared)))


def _ranks_by_chunk(needs: Sequence[Iterable[Chunk]], common: Collection[Chunk]) -> dict[Chunk, list[int]]:
    """List the ranks that need a part of each chunk for themselves."""
    ranks_by_chunk: dict[Chunk, list[int]] = {chunk: [] for chunk in common}
    for rank, chunks in enumerate(needs):
        for chunk in chunks:
            ranks_by_chunk.setdefault(chunk, []).append(rank)
    return ranks_by_chunk


def freeze_requests_and_assign_readers(
    ranks: Ranks, requests: SliceRequests, chunk_size: int, cached: Iterable[Chunk] = ()
) -> Work:
    """Gather which chunks every rank needs and has in `cached`, and assign each chunk to one rank that
    reads it. A collective."""
    needed, common = requests.freeze_and_list_own_and_common_chunks(chunk_size)
    # Taken to be alike on all ranks: that is seen here, for one reduction.
    common_digest = digest.small_object_digest(
        repr(sorted((number, landing.ranges) for number, landing in requests.common.items())).encode()
    )
    if len(set(ranks.gather(common_digest))) > 1:
        needed, common = requests.merge_common_into_own_requests(chunk_size), []
    gathered = ranks.gather((_flatten(needed), _flatten(sorted(cached))))
    return assign_readers(
        [_unflatten(flat) for flat, _ in gathered], common, [_unflatten(flat) for _, flat in gathered]
    )


def _flatten(chunks: Iterable[Chunk]) -> list[int]:
    return [number for chunk in chunks for number in chunk]


def _unflatten(flat: Sequence[int]) -> list[Chunk]:
    return list(zip(flat[::2], flat[1::2], strict=True))
