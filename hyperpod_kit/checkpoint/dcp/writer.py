"""Write our checkpoints with torch.distributed.checkpoint: `dcp.save(state, storage_writer=Writer(root, step=7))`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from hyperpod_kit import __version__
from hyperpod_kit.checkpoint.dcp.reader import BYTES
from hyperpod_kit.checkpoint.dtypes import NAMES
from hyperpod_kit.checkpoint.load import view_of
from hyperpod_kit.checkpoint.repository import catalog, commit, coverage, digest, identity, index, layout, stream
from hyperpod_kit.checkpoint.repository.manifest import FileRecord, Manifest, now
from hyperpod_kit.checkpoint.repository.shard import Placed, ShardLayout, TensorSpec, lay_out
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError

_SLICE = 16 * 1024 * 1024


class _Place(NamedTuple):
    """Rank `rank`'s part of the attempt that the coordinator has chosen for all."""

    attempt: str
    run: str
    run_id: str
    epoch: int
    seq: int
    step: int
    rank: int
    world: int
    algorithm: str


class _Written(NamedTuple):
    """What a rank has written: its file, and where its pieces lie in it."""

    place: _Place
    record: FileRecord
    pieces: tuple[Placed, ...]


class Writer(StorageWriter):
    """One committed checkpoint of ours per `dcp.save`, under `root`, as the state of `step`.

    The save waits until the checkpoint is durable. A save that fails on any rank commits nothing: the attempt stays
    without a manifest and counts for nothing. `run` as in Manager. Raises RunIsOwned, CheckpointError, OSError, inside
    the CheckpointException of torch.distributed.checkpoint.
    """

    def __init__(self, root: str | os.PathLike[str], *, step: int, run: str | None = None,
                 algorithm: str | None = None) -> None:
        self._store = open_store(os.fspath(root))
        self._step = step
        self._run = run
        self._algorithm = algorithm or os.environ.get("HPK_DIGEST")

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageWriter; the attempt's name is the coordinator's choice."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """See StorageWriter."""
        return bool(os.fspath(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageWriter: the store makes what it needs."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Say which digests this rank can compute."""
        return replace(plan, storage_data=[name for name, here in digest.available().items() if here])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The coordinator opens the root, names the attempt and chooses the digest. Raises DigestUnavailable."""
        algorithm = self._algorithm or digest.best(*[plan.storage_data for plan in plans])
        digest.algorithm(algorithm)
        mine = identity.open_root(self._store, self._run)
        epoch = commit.claim_epoch(self._store, mine, above=0, job={})
        seq = catalog.highest(self._store)[1] + 1
        attempt = str(layout.AttemptName(seq, self._step, epoch, secrets.token_hex(3)))
        return [replace(plan, items=items, storage_data=_Place(attempt, mine.run, mine.run_id, epoch, seq,
                                                               self._step, rank, len(plans), algorithm))
                for rank, (plan, items) in enumerate(zip(plans, _without_empty(plans), strict=True))]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard, durable. Raises CheckpointError for two pieces of one tensor on a rank, OSError."""
        place: _Place = plan.storage_data
        tensors: dict[str, torch.Tensor] = {}
        specs: list[TensorSpec] = []
        for item in plan.items:
            spec, tensor = _resolve(item, planner)
            if spec.name in tensors:
                raise CheckpointError(f"{spec.name} has two pieces on rank {place.rank}: a shard holds one")
            tensors[spec.name] = tensor
            specs.append(spec)
        made = lay_out(specs, rank=place.rank, world=place.world, run=place.run_id, plan="dcp",
                       algorithm=place.algorithm)
        record = self._write(place, made, tensors)
        written = _Written(place, record, made.tensors)
        done: Future[list[WriteResult]] = Future()
        # One result carries the shard's own; the others only say that their item is written.
        done.set_result([WriteResult(index=item.index, size_in_bytes=spec.nbytes, storage_data=None)
                         for item, spec in zip(plan.items, specs, strict=True)]
                        + [WriteResult(index=None, size_in_bytes=0, storage_data=written)])  # type: ignore[arg-type]
        return done

    def _write(self, place: _Place, made: ShardLayout, tensors: dict[str, torch.Tensor]) -> FileRecord:
        image = stream.Buffer(made.size).view[:made.size]
        head = made.header(place.epoch, place.seq, place.step)
        image[:len(head)] = head
        for placed in made.tensors:
            if placed.end > placed.begin:
                flat = tensors[placed.spec.name].detach().cpu().contiguous().resolve_conj().resolve_neg()
                image[placed.begin:placed.end] = view_of(flat.reshape(-1).view(torch.uint8))
        alg = digest.algorithm(place.algorithm)
        leaves = digest.leaves_of(alg, image[:made.data_end], threads=2)
        image[made.data_end:] = leaves
        name = layout.shard_file(place.rank)
        writer = self._store.open_write(f"{place.attempt}/{name}", made.size)
        try:
            for at in range(0, made.size, _SLICE):
                writer.write(image[at:at + _SLICE], at)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        return FileRecord(name, made.size, digest.root(alg, leaves, made.size), place.rank)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit, once every rank's shard is there and every item of every tensor is in exactly one.

        Raises CheckpointError, OSError; then nothing is committed.
        """
        shards = [result.storage_data for part in results for result in part
                  if isinstance(result.storage_data, _Written)]
        shards.sort(key=lambda written: written.place.rank)
        place = shards[0].place
        if [written.place.rank for written in shards] != list(range(place.world)):
            raise CheckpointError(f"{len(shards)} of {place.world} shards were written")
        found = index.build({written.place.rank: written.pieces for written in shards})
        coverage.check(found)
        names = set(found.tensors())
        if names != set(metadata.state_dict_metadata):
            missing = sorted(set(metadata.state_dict_metadata) - names)
            raise CheckpointError(f"{len(missing)} items are in no shard: {missing[:8]}")
        extra = _tree(metadata, place.world)
        entries = index.encode(found)
        records = tuple(written.record for written in shards)
        body = Manifest(
            run=place.run, run_id=place.run_id, epoch=place.epoch, seq=place.seq, step=place.step, world=place.world,
            plan="dcp", digest=place.algorithm, chunk=digest.CHUNK, total_bytes=sum(r.size for r in records),
            tensors=len(names), time=now(), shards=records,
            extra=FileRecord.of(layout.EXTRA_FILE, extra),
            index=FileRecord.of(layout.INDEX_FILE, entries),
            versions={"hyperpod_kit": __version__, "torch": torch.__version__, "writer": "dcp"})
        commit.commit(self._store, place.attempt, body, extra, entries)


def _without_empty(plans: Sequence[SavePlan]) -> list[list[WriteItem]]:
    """Each rank's items without parts that have no element; of an empty tensor the first one stays."""
    seen: set[str] = set()
    out = []
    for plan in plans:
        kept = []
        for item in plan.items:
            part = item.tensor_data
            if part is not None and 0 in part.chunk.sizes:
                if 0 not in part.size or item.index.fqn in seen:
                    continue
                seen.add(item.index.fqn)
            kept.append(item)
        out.append(kept)
    return out


def _resolve(item: WriteItem, planner: SavePlanner) -> tuple[TensorSpec, torch.Tensor]:
    name = item.index.fqn
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        assert not isinstance(data, torch.Tensor)
        tensor = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
        return TensorSpec(name, "U8", (tensor.numel(),)), tensor
    assert isinstance(data, torch.Tensor) and item.tensor_data is not None
    if data.dtype not in NAMES:
        raise CheckpointError(f"{name} is a tensor of {data.dtype}, which a checkpoint cannot hold")
    chunk, full = item.tensor_data.chunk, tuple(item.tensor_data.size)
    box = tuple(chunk.sizes) != full
    return TensorSpec(name, NAMES[data.dtype], tuple(chunk.sizes), tuple(chunk.offsets) if box else (),
                      full if box else ()), data


def _tree(metadata: Metadata, world: int) -> bytes:
    """extra.json: which items are no tensors, and the paths that the planner made the names from."""
    paths: dict[str, Sequence[Any]] = metadata.planner_data or {}
    names = sorted(name for name, entry in metadata.state_dict_metadata.items()
                   if isinstance(entry, BytesStorageMetadata))
    shared = {"dcp": {BYTES: names, "paths": {name: list(path) for name, path in paths.items()}}}
    body = {"format": layout.EXTRA_FORMAT, "shared": shared, "ranks": [{} for _ in range(world)]}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"
