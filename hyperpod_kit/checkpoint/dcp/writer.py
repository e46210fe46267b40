"""Write our checkpoints with torch.distributed.checkpoint: `dcp.save(state, storage_writer=Writer(root, step=7))`."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from hyperpod_kit.checkpoint.codec import sharding, unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.dcp import checkpoint_location, subclass_parts
from hyperpod_kit.checkpoint.dcp.reader import BYTES
from hyperpod_kit.checkpoint.dcp.subclass_parts import Record, WrittenPart
from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import coverage, digest, index, layout, rows, sealed_text
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest, now
from hyperpod_kit.checkpoint.repository.format.shard import Placed, ShardLayout, TensorSpec, lay_out
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.checkpoint.transfer.load import bytes_of, view_of
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import counted
from hyperpod_kit.version import version

_SLICE = 16 * 1024 * 1024


class _RankPlacement(NamedTuple):
    """A rank's part of the attempt that the coordinator has chosen for all: `files` of its `world` files, from number
    `rank` on. A file holds one piece of a tensor, so a rank with two pieces of one tensor writes two."""

    checkpoint_id: str
    run: str
    run_id: str
    epoch: int
    seq: int
    step: int
    rank: int
    files: int
    world: int
    algorithm: str


class _WrittenFile(NamedTuple):
    """A file that was written, and where the pieces lie in it."""

    number: int
    record: FileRecord
    pieces: tuple[Placed, ...]


class _RankFiles(NamedTuple):
    """What a rank has written. `records`: of the subclasses that it took apart, by name."""

    placement: _RankPlacement
    files: tuple[_WrittenFile, ...]
    records: dict[str, Record]


class Writer(StorageWriter):
    """One committed checkpoint of ours per `dcp.save`, under `root`, as the state of `step`.

    The save waits until the checkpoint is durable. A save that fails on any rank commits nothing: the attempt stays
    without a manifest and counts for nothing. `run` as in Manager. A `checkpoint_id` given to `dcp.save` is the root in
    place of this one. Nothing is ever overwritten: each save makes an attempt, whose name is then in `save_id`. A
    tensor subclass is written by the tensors that it is made of, and a Reader fills these.
    Raises RunIsOwned, StateNotSerializable (a tensor subclass that cannot be taken apart), CheckpointError, OSError,
    inside the CheckpointException of torch.distributed.checkpoint.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, step: int, run: str | None = None, algorithm: str | None = None
    ) -> None:
        self.checkpoint_id = os.fspath(root)
        self.save_id: str | None = None
        self._store = checkpoint_location.DcpLocation(self.checkpoint_id, "").store()
        self._step = step
        self._run = run
        self._algorithm = digest.algorithm_name_or_environment_default(algorithm)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A `checkpoint_id` is a root. Raises CheckpointError for that of an attempt: each save makes a new one."""
        self.save_id = None
        if checkpoint_id:
            location = checkpoint_location.parse(checkpoint_id)
            if location.checkpoint_id:
                raise CheckpointError(
                    f"{os.fspath(checkpoint_id)} names an attempt, but each save creates its own attempt",
                    hint=f"checkpoint_id={location.root or self.checkpoint_id!r}",
                )
            self.checkpoint_id, self._store = location.root, location.store()

    def storage_meta(self) -> StorageMeta:
        """See StorageWriter."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a root of checkpoints, or an attempt under one."""
        return checkpoint_location.is_wellformed_root_or_checkpoint(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageWriter: the store makes what it needs. Raises CheckpointError for a save without collectives."""
        if not kwargs.get("use_collectives", True):
            raise CheckpointError(
                "a save without collectives would make as many checkpoints as there are ranks",
                hint="dcp.save(..., use_collectives=True)",
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Say which digests this rank can compute."""
        return replace(plan, storage_data=[name for name, here in digest.available_algorithms().items() if here])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The coordinator opens the root, names the attempt and chooses the digest. Raises DigestUnavailable."""
        algorithm = self._algorithm or digest.fastest_common_algorithm(*[plan.storage_data for plan in plans])
        digest.algorithm(algorithm)
        run_identity = identity.ensure_run_identity(self._store, self._run)
        epoch = commit.claim_epoch(self._store, run_identity, above=0, job={})
        seq = catalog.highest_epoch_and_seq(self._store)[1] + 1
        checkpoint_id = str(layout.CheckpointId(seq, self._step, epoch, secrets.token_hex(3)))
        divided = _without_empty_parts(plans)
        files = [max(Counter(item.index.fqn for item in items).values(), default=1) for items in divided]
        return [
            replace(
                plan,
                items=items,
                storage_data=_RankPlacement(
                    checkpoint_id,
                    run_identity.run,
                    run_identity.run_id,
                    epoch,
                    seq,
                    self._step,
                    sum(files[:rank]),
                    files[rank],
                    sum(files),
                    algorithm,
                ),
            )
            for rank, (plan, items) in enumerate(zip(plans, divided, strict=True))
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shards, durable. Raises CheckpointError, OSError."""
        placement: _RankPlacement = plan.storage_data
        self.save_id = placement.checkpoint_id
        contents: list[dict[str, WrittenPart]] = [{} for _ in range(placement.files)]
        records: dict[str, Record] = {}
        sizes: list[int] = []
        for item in plan.items:
            parts = _resolve_written_parts(item, planner, records)
            for part in parts:
                next(content for content in contents if part.spec.name not in content)[part.spec.name] = part
            sizes.append(sum(part.spec.nbytes for part in parts))
        files = tuple(self._write_file(placement, placement.rank + at, content) for at, content in enumerate(contents))
        written = _RankFiles(placement, files, records)
        done: Future[list[WriteResult]] = Future()
        # One result carries the shard's own; the others only say that their item is written.
        done.set_result(
            [
                WriteResult(index=item.index, size_in_bytes=size, storage_data=None)
                for item, size in zip(plan.items, sizes, strict=True)
            ]
            + [WriteResult(index=None, size_in_bytes=0, storage_data=written)]  # type: ignore[arg-type]
        )
        return done

    def _write_file(self, placement: _RankPlacement, number: int, content: dict[str, WrittenPart]) -> _WrittenFile:
        shard_layout = lay_out(
            [part.spec for part in content.values()],
            rank=number,
            world=placement.world,
            run_id=placement.run_id,
            plan="dcp",
            algorithm=placement.algorithm,
        )
        return _WrittenFile(
            number,
            self._write_shard(placement, number, shard_layout, {name: part.tensor for name, part in content.items()}),
            shard_layout.tensors,
        )

    def _write_shard(
        self, placement: _RankPlacement, number: int, shard_layout: ShardLayout, tensors: dict[str, torch.Tensor]
    ) -> FileRecord:
        image = stream.Buffer(shard_layout.size).view[: shard_layout.size]
        head = shard_layout.header(placement.epoch, placement.seq, placement.step)
        image[: len(head)] = head
        for placed in shard_layout.tensors:
            if placed.end > placed.begin:
                flat = tensors[placed.spec.name].detach().cpu().contiguous().resolve_conj().resolve_neg()
                image[placed.begin : placed.end] = view_of(bytes_of(flat))
        alg = digest.algorithm(placement.algorithm)
        leaves = digest.leaves_of(alg, image[: shard_layout.data_end], threads=2)
        image[shard_layout.data_end :] = leaves
        name = layout.shard_file(number)
        writer = self._store.open_write(f"{placement.checkpoint_id}/{name}", shard_layout.size)
        try:
            for at in range(0, shard_layout.size, _SLICE):
                writer.write(image[at : at + _SLICE], at)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        return FileRecord(name, shard_layout.size, digest.root_digest(alg, leaves, shard_layout.size), number)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit, once every rank's shard is there and every item of every tensor is in exactly one.

        Raises CheckpointError, OSError; then nothing is committed.
        """
        stored = [result.storage_data for rank_results in results for result in rank_results]
        ranks = [files for files in stored if isinstance(files, _RankFiles)]
        placement = ranks[0].placement
        shards = sorted((file for written in ranks for file in written.files), key=lambda file: file.number)
        if [file.number for file in shards] != list(range(placement.world)):
            raise CheckpointError(f"{len(shards)} of {placement.world} shards were written")
        placed = {file.number: file.pieces for file in shards}
        table = index.build(placed)
        coverage.require_full_coverage(table)
        names = set(table.tensors())
        taken_apart = _merge_subclass_records(ranks)
        expected = set(metadata.state_dict_metadata) - taken_apart.keys()
        expected.update(name for record in taken_apart.values() for name in subclass_parts.stored_part_names(record))
        if names != expected:
            missing = sorted(expected - names)
            raise CheckpointError(f"{counted(len(missing), 'item is', 'items are')} in no shard: {missing[:8]}")
        extra = _encode_extra_json(metadata, placement, taken_apart)
        entries = rows.encode_index_file(placed)
        records = tuple(file.record for file in shards)
        body = Manifest(
            run=placement.run,
            run_id=placement.run_id,
            epoch=placement.epoch,
            seq=placement.seq,
            step=placement.step,
            world=placement.world,
            plan="dcp",
            digest=placement.algorithm,
            chunk=digest.CHUNK,
            total_bytes=sum(r.size for r in records),
            tensors=len(names),
            time=now(),
            shards=records,
            extra=FileRecord.of(layout.EXTRA_FILE, extra),
            index=FileRecord.of(layout.INDEX_FILE, entries),
            versions={"hyperpod_kit": version(), "torch": torch.__version__, "writer": "dcp"},
        )
        commit.commit(self._store, placement.checkpoint_id, body, extra, entries)


def _without_empty_parts(plans: Sequence[SavePlan]) -> list[list[WriteItem]]:
    """Return each rank's items without parts that have no element; of an empty tensor the first one
    stays."""
    kept_names: set[str] = set()
    items_by_rank = []
    for plan in plans:
        rank_items = []
        for item in plan.items:
            part = item.tensor_data
            if part is not None and 0 in part.chunk.sizes:
                if 0 not in part.size or item.index.fqn in kept_names:
                    continue
                kept_names.add(item.index.fqn)
            rank_items.append(item)
        items_by_rank.append(rank_items)
    return items_by_rank


def _resolve_written_parts(item: WriteItem, planner: SavePlanner, records: dict[str, Record]) -> Sequence[WrittenPart]:
    """Return what is written of an item; the record of a subclass is added to `records`. Raises
    StateNotSerializable, CheckpointError."""
    name = item.index.fqn
    values: dict[str, Any] = getattr(planner, "state_dict", {})
    # Before the planner slices it: what a slice of a quantised tensor is, its class decides, and most often it is none.
    subclass = subclass_parts.split_subclass(name, values.get(name))
    if subclass is not None:
        clash = next((part.spec.name for part in subclass.parts if part.spec.name in values), None)
        if clash is not None:
            raise CheckpointError(f"{clash} is a tensor of the state, and a part of the tensor subclass {name} too")
        records[name] = subclass.record
        return subclass.parts
    return [_written_part_of_item(item, planner.resolve_data(item))]


def _written_part_of_item(item: WriteItem, data: Any) -> WrittenPart:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        tensor = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
        return WrittenPart(TensorSpec(name, "U8", (tensor.numel(),)), tensor)
    assert isinstance(data, torch.Tensor) and item.tensor_data is not None
    data = sharding.wait_for_collective(data)
    if not sharding.is_plain(data):
        raise unsavable.subclass_error(name, data)
    unsavable.require_savable(name, data)
    chunk, full = item.tensor_data.chunk, tuple(item.tensor_data.size)
    sizes, dtype = tuple(chunk.sizes), NAMES[data.dtype]
    if sizes == full:
        return WrittenPart(TensorSpec(name, dtype, sizes), data)
    return WrittenPart(TensorSpec(name, dtype, sizes, tuple(chunk.offsets), full), data)


def _merge_subclass_records(ranks: Sequence[_RankFiles]) -> dict[str, Record]:
    """Return the subclass records of all ranks, by name. Raises CheckpointError where ranks have
    another one under a name."""
    records: dict[str, Record] = {}
    for written in ranks:
        for name, record in written.records.items():
            first_record = records.setdefault(name, record)
            if first_record != record:
                raise CheckpointError(f"the ranks have different tensors at {name}: {first_record} and {record}")
    return records


def _encode_extra_json(metadata: Metadata, placement: _RankPlacement, records: dict[str, Record]) -> bytes:
    """Return the bytes of extra.json: which items are no tensors, and the paths that the planner made
    the names from."""
    paths: dict[str, Sequence[Any]] = metadata.planner_data or {}
    names = sorted(
        name for name, entry in metadata.state_dict_metadata.items() if isinstance(entry, BytesStorageMetadata)
    )
    written: dict[str, Any] = {BYTES: names, "paths": {name: list(path) for name, path in paths.items()}}
    if records:
        written[subclass_parts.SUBCLASSES] = subclass_parts.encode_subclass_records(records)
    shared = {"dcp": written}
    body = {
        "format": layout.EXTRA_FORMAT,
        "shared": shared,
        "ranks": [{} for _ in range(placement.world)],
        "attempt": [placement.epoch, placement.seq, placement.step],
    }
    return sealed_text.seal(json.dumps(body, separators=(",", ":"), allow_nan=False))
