"""A checkpoint that one process writes for all ranks, into a root in which nothing was committed: no agent, no shared
memory, and 16 MB of a tensor at a time."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.capture import replica_assignment
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files.byte_sources import ByteSource, ImportedPiece, TensorBytes
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import commit, retention
from hyperpod_kit.checkpoint.repository.format import coverage, digest, index, layout, rows
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest, now
from hyperpod_kit.checkpoint.repository.format.shard import Placed, ShardLayout, lay_out
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.state.tensors import StateTensors
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version


class RankPart(NamedTuple):
    """What one rank's shard and tree are to hold. `plan`: as StateTensors has it, the same for all ranks."""

    pieces: Sequence[ImportedPiece]
    tree: Mapping[str, Any]
    plan: str = "import"


class WrittenRoot(NamedTuple):
    """The attempt that was committed; `bytes` are those of its shards."""

    checkpoint_id: str
    tensors: int
    bytes: int


def parts_of_states(states: Iterator[State], world: int) -> Iterator[RankPart]:
    """Yield the part of each rank from the states, which come in the ranks' order, as the ranks would have saved
    them. Raise StateNotSerializable, and what `states` raises."""
    for rank, state in zip(range(world), states, strict=True):
        tensors = state.tensors(_ranks_without_collectives(rank, world))
        pieces = [
            ImportedPiece(piece.spec, TensorBytes(piece.tensor)) for piece in _pieces_written_by(rank, tensors).values()
        ]
        yield RankPart(pieces, tensors.tree, tensors.plan)


def preview(world: int, parts: Iterator[RankPart]) -> WrittenRoot:
    """Return what `write_and_commit` would commit, without a checkpoint id; no tensor is read. Raise
    CheckpointError, and what `parts` raise."""
    placed: dict[int, Sequence[Placed]] = {}
    size = 0
    for rank, part in zip(range(world), parts, strict=True):
        specs = [piece.spec for piece in part.pieces]
        shard_layout = lay_out(
            specs, rank=rank, world=world, run_id="", plan=part.plan, algorithm=digest.fastest_common_algorithm()
        )
        placed[rank] = shard_layout.tensors
        size += shard_layout.size
    table = index.build(placed)
    coverage.require_full_coverage(table)
    return WrittenRoot("", len(table.tensors()), size)


def write_and_commit(
    store: Store,
    step: int,
    world: int,
    parts: Iterator[RankPart],
    versions: Mapping[str, str],
    progress: Callable[[int], None],
) -> WrittenRoot:
    """Write and commit the part of each rank, which `parts` yields in their order; `versions`: what the manifest
    says beside those of the libraries; `progress` is called with how many bytes were written. A failure
    leaves nothing that counts. Raise RunIsOwned, CheckpointError, OSError, and what `parts` and their sources
    raise."""
    run_identity = identity.ensure_run_identity(store)
    epoch = commit.claim_epoch(store, run_identity, above=0, job={})
    seq = catalog.highest_epoch_and_seq(store)[1] + 1
    checkpoint_id = str(layout.CheckpointId(seq, step, epoch, secrets.token_hex(3)))
    algorithm = digest.fastest_common_algorithm()
    texts: dict[int, tuple[tuple[str, str], ...]] = {}
    placed: dict[int, Sequence[Placed]] = {}
    records: list[FileRecord] = []
    plans: list[str] = []
    try:
        for rank, part in zip(range(world), parts, strict=True):
            shard_layout = lay_out(
                [piece.spec for piece in part.pieces],
                rank=rank,
                world=world,
                run_id=run_identity.run_id,
                plan=part.plan,
                algorithm=algorithm,
            )
            head = shard_layout.header(epoch, seq, step)
            sources = {piece.spec.name: piece.source for piece in part.pieces}
            content = _ShardContent(shard_layout, head, sources, progress)
            records.append(_write_shard(store, checkpoint_id, rank, shard_layout, content, algorithm))
            tree = {**part.tree, "save": {"parent": None, "metrics": {}}}
            texts[rank] = tuple((key, codec.to_json_text(value).decode()) for key, value in tree.items())
            placed[rank], plans = shard_layout.tensors, [*plans, part.plan]
        if len(set(plans)) > 1:
            raise CheckpointError("the ranks' files differ in values that all ranks share")
        table = index.build(placed)
        coverage.require_full_coverage(table)
        typed = any(
            codec.has_records_unknown_to_old_readers(text.encode()) for parts in texts.values() for _, text in parts
        )
        extra = extra_state.encode(
            texts, {}, has_pipeline_stages=False, checkpoint_key=(epoch, seq, step), has_typed_records=typed
        )
        entries = rows.encode_index_file(placed)
        body = Manifest(
            run=run_identity.run,
            run_id=run_identity.run_id,
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
        commit.commit(store, checkpoint_id, body, extra, entries)
    except BaseException:
        with contextlib.suppress(CheckpointError, OSError):
            retention.delete_checkpoint_except_foreign_files(store, checkpoint_id)
        raise
    return WrittenRoot(checkpoint_id, body.tensors, body.total_bytes)


def _ranks_without_collectives(rank: int, world: int) -> Ranks:
    ranks = Ranks(alone=True)
    ranks.rank, ranks.world = rank, world
    return ranks


def _pieces_written_by(rank: int, tensors: StateTensors) -> dict[str, Any]:
    """Return what lies in the rank's shard: what it alone has, and its share of what all hold."""
    owners = replica_assignment.assign_writing_replica_indexes(tensors.pieces)
    return {
        piece.spec.name: piece
        for piece in tensors.pieces
        if owners[piece.spec.name] == piece.replica[0] or piece.is_per_rank
    }


def _write_shard(
    store: Store, checkpoint_id: str, rank: int, shard_layout: ShardLayout, content: _ShardContent, algorithm: str
) -> FileRecord:
    alg = digest.algorithm(algorithm)
    name = layout.shard_file(rank)
    buffer = stream.Buffer(digest.CHUNK)
    leaves = bytearray()
    writer = store.open_write(f"{checkpoint_id}/{name}", shard_layout.size)
    try:
        for begin in range(0, shard_layout.data_end, digest.CHUNK):
            end = min(begin + digest.CHUNK, shard_layout.data_end)
            view = buffer.view[: end - begin]
            content.fill(view, begin)
            leaves += alg.leaf(view)
            if end < shard_layout.data_end:
                writer.write(view, begin)
                continue
            last = stream.Buffer(shard_layout.size - begin).view[
                : shard_layout.size - begin
            ]  # the leaves lie right behind
            last[: len(view)] = view
            last[len(view) :] = leaves
            writer.write(last, begin)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return FileRecord(name, shard_layout.size, digest.root_digest(alg, bytes(leaves), shard_layout.size), rank)


class _ShardContent:
    """The bytes of a shard before its leaves, asked for in their order."""

    def __init__(
        self, shard_layout: ShardLayout, head: bytes, sources: Mapping[str, ByteSource], progress: Callable[[int], None]
    ) -> None:
        self._head, self._sources, self._progress = head, sources, progress
        self._remaining = [placed for placed in shard_layout.tensors if placed.end > placed.begin]
        self._remaining.sort(key=lambda placed: placed.begin, reverse=True)

    def fill(self, view: memoryview, begin: int) -> None:
        """Fill `view` with the bytes that lie at `begin` of the file. Called for the bytes in their order."""
        end = begin + len(view)
        at = begin
        if begin < len(self._head):
            at = min(end, len(self._head))
            view[: at - begin] = self._head[begin:at]
        while at < end:
            placed = self._remaining[-1]
            copy_end = min(end, placed.end)
            self._sources[placed.spec.name].read(view[at - begin : copy_end - begin], at - placed.begin)
            at = copy_end
            if at == placed.end:
                self._remaining.pop()
        self._progress(len(view))
