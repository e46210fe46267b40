"""A checkpoint that one process writes for all ranks, into a root in which nothing was committed: no agent, no shared
memory, and 16 MB of a tensor at a time."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import codec, replica_assignment
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.formats.byte_sources import ByteSource, ImportedPiece, TensorBytes
from hyperpod_kit.checkpoint.repository import (
    catalog,
    commit,
    coverage,
    digest,
    identity,
    index,
    layout,
    retention,
    rows,
    stream,
)
from hyperpod_kit.checkpoint.repository.manifest import FileRecord, Manifest, now
from hyperpod_kit.checkpoint.repository.shard import Placed, ShardLayout, lay_out
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.tensors import StateTensors
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version


class RankPart(NamedTuple):
    """What one rank's shard and tree are to hold. `plan`: as StateTensors has it, the same for all ranks."""

    pieces: Sequence[ImportedPiece]
    tree: Mapping[str, Any]
    plan: str = "import"


class WrittenRoot(NamedTuple):
    """The attempt that was committed; `bytes` are those of its shards."""

    attempt: str
    tensors: int
    bytes: int


def parts_of(states: Iterator[State], world: int) -> Iterator[RankPart]:
    """The states of the ranks, which are yielded in their order, as the ranks would have saved them. Raises
    StateNotSerializable, and what `states` raises."""
    for rank, state in zip(range(world), states, strict=True):
        found = state.tensors(_rank_of(rank, world))
        pieces = [ImportedPiece(piece.spec, TensorBytes(piece.tensor)) for piece in _written_by(rank, found).values()]
        yield RankPart(pieces, found.tree, found.plan)


def looked_at(world: int, parts: Iterator[RankPart]) -> WrittenRoot:
    """What `write` would commit, of which no tensor is read: no attempt. Raises CheckpointError, and what `parts`
    raise."""
    placed: dict[int, Sequence[Placed]] = {}
    size = 0
    for rank, part in zip(range(world), parts, strict=True):
        specs = [piece.spec for piece in part.pieces]
        made = lay_out(specs, rank=rank, world=world, run="", plan=part.plan, algorithm=digest.best())
        placed[rank] = made.tensors
        size += made.size
    table = index.build(placed)
    coverage.check(table)
    return WrittenRoot("", len(table.tensors()), size)


def write(
    store: Store,
    step: int,
    world: int,
    parts: Iterator[RankPart],
    versions: Mapping[str, str],
    progress: Callable[[int], None],
) -> WrittenRoot:
    """Commit the part of each rank, which `parts` yields in their order; `versions`: what the manifest says beside
    those of the libraries; `progress` is told how many bytes were written. What fails leaves nothing that counts.
    Raises RunIsOwned, CheckpointError, OSError, and what `parts` and their sources raise."""
    whose = identity.open_root(store)
    epoch = commit.claim_epoch(store, whose, above=0, job={})
    seq = catalog.highest_epoch_and_seq(store)[1] + 1
    attempt = str(layout.CheckpointId(seq, step, epoch, secrets.token_hex(3)))
    algorithm = digest.best()
    texts: dict[int, tuple[tuple[str, str], ...]] = {}
    placed: dict[int, Sequence[Placed]] = {}
    records: list[FileRecord] = []
    plans: list[str] = []
    try:
        for rank, part in zip(range(world), parts, strict=True):
            made = lay_out(
                [piece.spec for piece in part.pieces],
                rank=rank,
                world=world,
                run=whose.run_id,
                plan=part.plan,
                algorithm=algorithm,
            )
            head = made.header(epoch, seq, step)
            sources = {piece.spec.name: piece.source for piece in part.pieces}
            content = _Content(made, head, sources, progress)
            records.append(_shard(store, attempt, rank, made, content, algorithm))
            tree = {**part.tree, "save": {"parent": None, "metrics": {}}}
            texts[rank] = tuple((key, codec.text_of(value).decode()) for key, value in tree.items())
            placed[rank], plans = made.tensors, [*plans, part.plan]
        if len(set(plans)) > 1:
            raise CheckpointError("the ranks' files do not hold the same of what all ranks share")
        table = index.build(placed)
        coverage.check(table)
        typed = any(codec.has_typed_records(text.encode()) for parts in texts.values() for _, text in parts)
        extra = extra_state.encode(texts, {}, stages=False, checkpoint_key=(epoch, seq, step), typed=typed)
        entries = rows.encode(placed)
        body = Manifest(
            run=whose.run,
            run_id=whose.run_id,
            epoch=epoch,
            seq=seq,
            step=step,
            world=world,
            plan=plans[0],
            digest=algorithm,
            chunk=digest.CHUNK,
            total_bytes=sum(record.size for record in records),
            tensors=len(table.tensors()),
            time=now(),
            shards=tuple(records),
            extra=FileRecord.of(layout.EXTRA_FILE, extra),
            index=FileRecord.of(layout.INDEX_FILE, entries),
            versions={"hyperpod_kit": version(), "torch": torch.__version__, **versions},
        )
        commit.commit(store, attempt, body, extra, entries)
    except BaseException:
        with contextlib.suppress(CheckpointError, OSError):
            retention.remove(store, attempt)
        raise
    return WrittenRoot(attempt, body.tensors, body.total_bytes)


def _rank_of(rank: int, world: int) -> Ranks:
    ranks = Ranks(alone=True)
    ranks.rank, ranks.world = rank, world
    return ranks


def _written_by(rank: int, found: StateTensors) -> dict[str, Any]:
    """What lies in the rank's shard: what is its own, and its share of what all hold."""
    owners = replica_assignment.owner(found.pieces)
    return {
        piece.spec.name: piece for piece in found.pieces if owners[piece.spec.name] == piece.replica[0] or piece.own
    }


def _shard(store: Store, attempt: str, rank: int, made: ShardLayout, content: _Content, algorithm: str) -> FileRecord:
    alg = digest.algorithm(algorithm)
    name = layout.shard_file(rank)
    buffer = stream.Buffer(digest.CHUNK)
    leaves = bytearray()
    writer = store.open_write(f"{attempt}/{name}", made.size)
    try:
        for begin in range(0, made.data_end, digest.CHUNK):
            end = min(begin + digest.CHUNK, made.data_end)
            view = buffer.view[: end - begin]
            content.fill(view, begin)
            leaves += alg.leaf(view)
            if end < made.data_end:
                writer.write(view, begin)
                continue
            last = stream.Buffer(made.size - begin).view[: made.size - begin]  # the leaves lie right behind
            last[: len(view)] = view
            last[len(view) :] = leaves
            writer.write(last, begin)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return FileRecord(name, made.size, digest.root(alg, bytes(leaves), made.size), rank)


class _Content:
    """The bytes of a shard before its leaves, asked for in their order."""

    def __init__(
        self, made: ShardLayout, head: bytes, sources: Mapping[str, ByteSource], progress: Callable[[int], None]
    ) -> None:
        self._head, self._sources, self._progress = head, sources, progress
        self._left = [placed for placed in made.tensors if placed.end > placed.begin]
        self._left.sort(key=lambda placed: placed.begin, reverse=True)

    def fill(self, view: memoryview, begin: int) -> None:
        """`view` lies at `begin` in the file."""
        end = begin + len(view)
        at = begin
        if begin < len(self._head):
            at = min(end, len(self._head))
            view[: at - begin] = self._head[begin:at]
        while at < end:
            placed = self._left[-1]
            upto = min(end, placed.end)
            self._sources[placed.spec.name].read(view[at - begin : upto - begin], at - placed.begin)
            at = upto
            if at == placed.end:
                self._left.pop()
        self._progress(len(view))
