"""Read any slices of any tensors of a committed attempt: each chunk from storage once, by one rank, checked by all.

A rank says which slices it wants and where they go. The slices become byte ranges, the ranges chunks; a chunk that
several ranks need is read by one of them and sent to the others, who compare its leaf again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.load import TargetFault, view_of
from hyperpod_kit.checkpoint.reason import Reason, Verdict, reason_in
from hyperpod_kit.checkpoint.repository import digest, index, stream, tombstone, verify
from hyperpod_kit.checkpoint.repository import shard as shards
from hyperpod_kit.checkpoint.repository.chunk_reader import Pump
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.rows import read as read_rows
from hyperpod_kit.checkpoint.repository.store.base import Store, StoreReader
from hyperpod_kit.errors import CheckpointError, DigestUnavailable

T = TypeVar("T")

_ROUND = 4
"""Chunks that each rank reads between two exchanges: bounds the memory that they wait in."""


class Attempt:
    """An attempt that is open for reading: its manifest, and its shards, opened when they are needed."""

    def __init__(self, store: Store, attempt: str, body: Manifest) -> None:
        self.store = store
        self.name = attempt
        self.manifest = body
        self._open: dict[int, tuple[StoreReader, stream.Shard]] = {}

    def shard(self, number: int) -> stream.Shard:
        """Raises DigestMismatch, CheckpointError, OSError."""
        if number not in self._open:
            record = self.manifest.shards[number]
            reader = self.store.open_read(f"{self.name}/{record.file}")
            try:
                made = stream.Shard(reader, record.size, record.root, name=record.file, chunk=self.manifest.chunk)
            except BaseException:
                reader.close()
                raise
            self._open[number] = reader, made
        return self._open[number][1]

    def close(self) -> None:
        for reader, _ in self._open.values():
            reader.close()
        self._open.clear()

    def rows(self) -> Rows:
        """From index.bin, checked; from the headers where there is none. Raises as `shard`."""
        return read_rows(self.index_bytes())

    def index_bytes(self) -> bytes:
        """What index.bin has, or would have. Raises as `shard`."""
        record = self.manifest.index
        if record is not None:
            return verify.read_extra(self.store, self.name, record)
        return index.encode(index.build({number: self._header(number) for number in range(len(self.manifest.shards))}))

    def _header(self, number: int) -> Sequence[shards.Placed]:
        opened = self.shard(number)
        first = memoryview(opened.read(0, min(4096, opened.data_end)))
        length = shards.head_size(first)
        if length > opened.data_end:
            raise CheckpointError(f"{opened.name}: a header of {length} bytes in a file of {opened.size}")
        return shards.parse(memoryview(opened.read(0, length)), opened.size).tensors


@contextlib.contextmanager
def opened(store: Store, attempt: str, body: Manifest) -> Iterator[Attempt]:
    """An attempt whose files are closed at the end."""
    made = Attempt(store, attempt, body)
    try:
        yield made
    finally:
        made.close()


def rows_of(ranks: Ranks, attempt: Attempt) -> Rows | Reason:
    """Where everything lies, read by rank 0 for all; or why that is not known. A collective."""
    found = guarded(attempt.index_bytes) if ranks.rank == 0 else b""
    problem = ranks.agree(reason_in(found))
    if problem is not None:
        return problem
    data: bytes = ranks.broadcast(found)
    rows = guarded(lambda: read_rows(data))
    problem = ranks.agree(reason_in(rows))
    return rows if problem is None else problem


def guarded(work: Callable[[], T]) -> T | Reason:
    """What this rank's part gives; an error becomes a reason, so that no rank leaves the others waiting.

    Raises DigestUnavailable, which is no verdict on what was read.
    """
    try:
        return work()
    except DigestUnavailable:
        raise
    except (TargetFault, MemoryError) as err:
        return Reason(str(err) or type(err).__name__, Verdict.UNFILLED)
    except (CheckpointError, OSError) as err:
        damaged, unread = tombstone.proves(err), verify.is_unread(err)
        verdict = Verdict.DAMAGED if damaged else Verdict.UNREAD if unread else Verdict.UNUSABLE
        return Reason(verify.reason_of(err), verdict)
    except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
        return Reason(f"{type(err).__name__}: {err}")


class Share(NamedTuple):
    """A chunk that several ranks need, and the one that reads it."""

    chunk: Chunk
    owner: int
    ranks: tuple[int, ...]


class Work(NamedTuple):
    """Who reads what: `alone[rank]` are the chunks that only that rank needs, `shared` the others in one order."""

    alone: tuple[tuple[Chunk, ...], ...]
    shared: tuple[Share, ...]


def divide(needs: Sequence[Iterable[Chunk]]) -> Work:
    """Give each chunk to one of the ranks that need it, about equally many to each. The same on all ranks."""
    wanted: dict[Chunk, list[int]] = {}
    for rank, chunks in enumerate(needs):
        for chunk in chunks:
            wanted.setdefault(chunk, []).append(rank)
    load = [0] * len(needs)
    alone: list[list[Chunk]] = [[] for _ in needs]
    for chunk, who in sorted(wanted.items()):
        if len(who) == 1:
            alone[who[0]].append(chunk)
            load[who[0]] += 1
    shared = []
    for chunk, who in sorted(wanted.items()):
        if len(who) > 1:
            owner = min(who, key=lambda rank: (load[rank], rank))
            load[owner] += 1
            shared.append(Share(chunk, owner, tuple(who)))
    return Work(tuple(tuple(chunks) for chunks in alone), tuple(shared))


def work_of(ranks: Ranks, needed: Sequence[Chunk]) -> Work:
    """`divide` of what every rank needs. A collective."""
    everybody = ranks.gather([number for chunk in needed for number in chunk])
    return divide([list(zip(found[::2], found[1::2], strict=True)) for found in everybody])


def carry_out(ranks: Ranks, attempt: Attempt, work: Work, requests: SliceRequests) -> Reason | None:
    """Read, check, send and hand on; None, or why not, the same on all ranks. A collective."""

    def read(chunks: Iterable[Chunk], kept: dict[Chunk, bytes]) -> None:
        jobs = [(attempt.shard(number), at) for number, at in chunks]
        number_of = {opened.name: number for (number, _), (opened, _) in zip(chunks, jobs, strict=True)}

        def deliver(opened: stream.Shard, begin: int, view: memoryview) -> None:
            number = number_of[opened.name]
            requests.landings[number].take(begin, view)
            if (number, begin // opened.chunk) in kept:
                kept[number, begin // opened.chunk] = bytes(view)

        with Pump(jobs) as pump:
            pump.finish(deliver)

    problem = ranks.agree(guarded(lambda: read(work.alone[ranks.rank], {})))
    for at in range(0, len(work.shared), _ROUND * ranks.world):
        if problem is not None:
            return problem
        part = work.shared[at : at + _ROUND * ranks.world]
        kept = {share.chunk: b"" for share in part if share.owner == ranks.rank}
        problem = ranks.agree(guarded(lambda kept=kept: read(list(kept), kept)))  # type: ignore[misc]
        if problem is None:
            problem = ranks.agree(_exchange(ranks, attempt, part, kept, requests))
    if problem is None:
        problem = ranks.agree(guarded(requests.complete))
    return problem


def _exchange(
    ranks: Ranks, attempt: Attempt, part: Sequence[Share], kept: Mapping[Chunk, bytes], requests: SliceRequests
) -> Reason | None:
    """Send and receive in one order on all ranks; whatever is wrong with a chunk is said afterwards."""
    problem: Reason | None = None
    for share in part:
        number, place = share.chunk
        begin, end = _bounds(attempt.manifest, number, place)
        if ranks.rank not in share.ranks and len(share.ranks) < ranks.world:
            continue
        mine = share.owner == ranks.rank
        data = torch.frombuffer(bytearray(kept[share.chunk]) if mine else bytearray(end - begin), dtype=torch.uint8)
        if len(share.ranks) == ranks.world:
            ranks.send_bytes(data, share.owner)
        else:
            ranks.pass_bytes(data, ranks.global_rank(share.owner), tuple(map(ranks.global_rank, share.ranks)))
        if not mine:
            view = view_of(data)

            def take(number: int = number, place: int = place, begin: int = begin, view: memoryview = view) -> None:
                attempt.shard(number).check(place, view)
                requests.landings[number].take(begin, view)

            problem = problem or guarded(take)
    return problem


def _bounds(body: Manifest, number: int, place: int) -> tuple[int, int]:
    data_end, _ = digest.split(body.shards[number].size, body.chunk)
    return place * body.chunk, min((place + 1) * body.chunk, data_end)
