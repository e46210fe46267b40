"""Who reads which chunk, where several ranks want parts of it: every rank comes to the same, and each chunk is read
once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.repository import digest

_READ = 4
"""Chunks that a rank reads between two exchanges, at most."""
_WANTED = 16
"""Chunks that a rank is handed parts of in one exchange, at most: with `_READ` it bounds the memory."""


class Share(NamedTuple):
    """A chunk that others need too, and the one that reads it.

    `ranks` want parts of it, the owner perhaps none. Of a chunk for `everybody` all ranks want a part alike as well.
    """

    chunk: Chunk
    owner: int
    ranks: tuple[int, ...]
    everybody: bool = False

    def concerns(self, rank: int) -> bool:
        """Whether that rank wants a part of it."""
        return self.everybody or rank in self.ranks


class Work(NamedTuple):
    """Who reads what: `alone[rank]` are the chunks that only that rank needs, `shared` the others in one order."""

    alone: tuple[tuple[Chunk, ...], ...]
    shared: tuple[Share, ...]

    def read_by(self, rank: int) -> list[Chunk]:
        """What that rank reads, or has read."""
        return [*self.alone[rank], *(share.chunk for share in self.shared if share.owner == rank)]

    def rounds(self) -> list[list[Share]]:
        """The shared ones, so that no rank reads, or is handed, more in one round than it has room for."""
        found: list[list[Share]] = []
        reads, wants = [0] * len(self.alone), [0] * len(self.alone)
        everybodys = 0
        for share in self.shared:
            number = max(
                reads[share.owner] // _READ,
                everybodys // _WANTED if share.everybody else 0,
                *(wants[rank] // _WANTED for rank in share.ranks),
            )
            reads[share.owner] = max(reads[share.owner], number * _READ) + 1
            for rank in share.ranks:
                wants[rank] = max(wants[rank], number * _WANTED) + 1
            if share.everybody:
                everybodys = max(everybodys, number * _WANTED) + 1
            found += [[] for _ in range(number + 1 - len(found))]
            found[number].append(share)
        return found


def divide(
    needs: Sequence[Iterable[Chunk]],
    common: Collection[Chunk] = (),
    kept: Sequence[Collection[Chunk]] = (),
) -> Work:
    """Give each chunk to one of the ranks that need it, about equally many to each. The same on all ranks.

    `common`: chunks of which all ranks need a part alike. `kept[rank]`: what that rank has read already, needed or not.
    """
    wanted: dict[Chunk, list[int]] = {chunk: [] for chunk in common}
    everybody = set(wanted) if len(needs) > 1 else set()
    for rank, chunks in enumerate(needs):
        for chunk in chunks:
            wanted.setdefault(chunk, []).append(rank)
    has = {chunk: rank for rank, chunks in enumerate(kept) for chunk in chunks}
    load = [0] * len(needs)
    alone: list[list[Chunk]] = [[] for _ in needs]
    shared: list[Share] = []
    rest: list[Chunk] = []
    for chunk, who in sorted(wanted.items()):
        owner = has.get(chunk)
        if owner is None and len(who) == 1:
            owner = who[0]
        if owner is None and len(needs) == 1:
            owner = 0
        if owner is None:
            rest.append(chunk)
        elif chunk in everybody or who not in ([owner], []):
            shared.append(Share(chunk, owner, tuple(who), chunk in everybody))
        else:
            alone[owner].append(chunk)
        if owner is not None:
            load[owner] += chunk not in has
    for chunk in rest:
        among = wanted[chunk] or range(len(needs))
        owner = min(among, key=lambda rank: (load[rank], rank))
        load[owner] += 1
        shared.append(Share(chunk, owner, tuple(wanted[chunk]), chunk in everybody))
    return Work(tuple(map(tuple, alone)), tuple(sorted(shared)))


def work_of(ranks: Ranks, requests: SliceRequests, chunk: int, kept: Iterable[Chunk] = ()) -> Work:
    """`divide` of what every rank needs, in chunks of `chunk` bytes, and has in `kept`. A collective."""
    needed, common = requests.freeze(chunk)
    # Taken to be alike on all ranks: that is seen here, for one reduction.
    alike = digest.small(repr(sorted((number, one.ranges) for number, one in requests.common.items())).encode())
    if len(set(ranks.gather(alike))) > 1:
        needed, common = requests.together(chunk), []
    everybody = ranks.gather((_flat(needed), _flat(sorted(kept))))
    return divide([_chunks(found) for found, _ in everybody], common, [_chunks(found) for _, found in everybody])


def _flat(chunks: Iterable[Chunk]) -> list[int]:
    return [number for chunk in chunks for number in chunk]


def _chunks(flat: Sequence[int]) -> list[Chunk]:
    return list(zip(flat[::2], flat[1::2], strict=True))
