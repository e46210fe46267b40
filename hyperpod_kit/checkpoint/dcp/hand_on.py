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

_MOST = 1 << 24
"""Numbers in what one rank asks of another: its ranges in 16 chunks."""
_COUNT, _ASKED, _SENT = 1, 2, 3
_DIGEST = 16
_LONG = 10.0
"""Seconds of one exchange that are not worth a thought."""
_SLOW = 4.0

Ranges = list[tuple[int, int]]


def too_slow(paces: Sequence[tuple[float, float]]) -> bool:
    """Whether the rest had better be read by whoever wants it. Of each rank: seconds of reading, of handing on."""
    read, sent = (max(seconds) for seconds in zip(*paces))
    return bool(sent > max(_LONG, _SLOW * len(paces) * read))


class HandOn:
    """The rounds of one restore. Every rank goes through the same ones."""

    def __init__(self, ranks: Ranks, body: Manifest, requests: SliceRequests) -> None:
        self._ranks, self._body, self._requests = ranks, body, requests
        self._alg = digest.algorithm(body.digest)

    def round(self, part: Sequence[Share], chunks: Mapping[Chunk, memoryview]) -> list[Chunk]:
        """Hand on `chunks`, which this rank owns, and take what it wants of the others'; which of these did not arrive
        as they were sent. A collective. Raises what torch.distributed raises when a peer has gone."""
        wrong = [chunk for share in part if share.everybody for chunk in self._to_all(share, chunks.get(share.chunk))]
        return wrong + self._asked(part, chunks)

    def _bounds(self, chunk: Chunk) -> tuple[int, int]:
        number, place = chunk
        data_end, _ = digest.split(self._body.shards[number].size, self._body.chunk)
        return place * self._body.chunk, min((place + 1) * self._body.chunk, data_end)

    def _to_all(self, share: Share, have: memoryview | None) -> list[Chunk]:
        begin, end = self._bounds(share.chunk)
        ranges = self._requests.wanted(share.chunk[0], begin, end, common=True)
        data = torch.empty(_length(ranges) + _DIGEST, dtype=torch.uint8, device="cpu")
        if have is not None:
            self._fill(view_of(data), ranges, have, begin)
        self._ranks.send_bytes(data, share.owner)
        return [] if have is not None or self._take(share.chunk[0], ranges, view_of(data)) else [share.chunk]

    def _asked(self, part: Sequence[Share], chunks: Mapping[Chunk, memoryview]) -> list[Chunk]:
        me = self._ranks.rank
        mine: dict[int, list[tuple[Chunk, Ranges]]] = {}  # owner -> what I want of it
        others: dict[int, list[Chunk]] = {}  # rank -> what it will ask me for
        for share in part:
            if share.owner == me:
                for rank in share.ranks:
                    if rank != me:
                        others.setdefault(rank, []).append(share.chunk)
            elif me in share.ranks:
                ranges = self._requests.wanted(share.chunk[0], *self._bounds(share.chunk))
                mine.setdefault(share.owner, []).append((share.chunk, ranges))
        asked = self._ask(mine, others)
        incoming = {
            owner: [torch.empty(_length(ranges) + _DIGEST, dtype=torch.uint8, device="cpu") for _, ranges in wanted]
            for owner, wanted in mine.items()
        }
        under_way = [self._ranks.receive(data, owner, _SENT) for owner, parts in incoming.items() for data in parts]
        for rank, wanted in others.items():
            for chunk, ranges in zip(wanted, asked[rank]):
                data = torch.empty(_length(ranges) + _DIGEST, dtype=torch.uint8, device="cpu")
                self._fill(view_of(data), ranges, chunks[chunk], self._bounds(chunk)[0])
                under_way.append(self._ranks.send(data, rank, _SENT))
        _wait(under_way)
        return [
            chunk
            for owner, wanted in mine.items()
            for (chunk, ranges), data in zip(wanted, incoming[owner])
            if not self._take(chunk[0], ranges, view_of(data))
        ]

    def _ask(
        self, mine: Mapping[int, list[tuple[Chunk, Ranges]]], others: Mapping[int, list[Chunk]]
    ) -> dict[int, list[Ranges]]:
        """Tell each owner the ranges that are wanted of its chunks; what each rank wants of this one's."""
        questions = {
            owner: torch.tensor(
                [number for _, ranges in wanted for number in (len(ranges), *(at for one in ranges for at in one))],
                device="cpu",
            )
            for owner, wanted in mine.items()
        }
        counts = {rank: torch.zeros(1, dtype=torch.int64, device="cpu") for rank in others}
        _wait(
            [self._ranks.receive(count, rank, _COUNT) for rank, count in counts.items()]
            + [
                self._ranks.send(torch.tensor([len(said)], device="cpu"), owner, _COUNT)
                for owner, said in questions.items()
            ]
        )
        heard = {
            rank: torch.zeros(_bounded(int(count)), dtype=torch.int64, device="cpu") for rank, count in counts.items()
        }
        _wait(
            [self._ranks.receive(said, rank, _ASKED) for rank, said in heard.items()]
            + [self._ranks.send(said, owner, _ASKED) for owner, said in questions.items()]
        )
        return {rank: _ranges(said.tolist(), len(others[rank])) for rank, said in heard.items()}

    def _fill(self, view: memoryview, ranges: Ranges, chunk: memoryview, begin: int) -> None:
        at = 0
        for first, last in ranges:
            view[at : at + last - first] = chunk[first - begin : last - begin]
            at += last - first
        view[at:] = self._alg.wide(view[:at])

    def _take(self, number: int, ranges: Ranges, view: memoryview) -> bool:
        found: bytes = self._alg.wide(view[:-_DIGEST])
        if found != bytes(view[-_DIGEST:]):
            return False
        at = 0
        for first, last in ranges:
            self._requests.take(number, first, view[at : at + last - first])
            at += last - first
        return True


def _length(ranges: Ranges) -> int:
    return sum(last - first for first, last in ranges)


def _wait(under_way: Sequence[Any]) -> None:
    for one in under_way:
        one.wait()


def _bounded(count: int) -> int:
    """Raises CheckpointError for what no rank of ours says."""
    if not 0 <= count <= _MOST:
        raise CheckpointError(f"a rank asks for {count} numbers of ranges, expected at most {_MOST}")
    return count


def _ranges(said: Sequence[int], count: int) -> list[Ranges]:
    found: list[Ranges] = []
    at = 0
    for _ in range(count):
        end = at + 1 + 2 * said[at]
        found.append(list(zip(said[at + 1 : end : 2], said[at + 2 : end : 2], strict=True)))
        at = end
    return found
