"""Read our checkpoints with torch.distributed.checkpoint: `dcp.load(state_dict, storage_reader=Reader(root))`."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from hyperpod_kit.checkpoint import codec
from hyperpod_kit.checkpoint.agent import trees
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp import place as places
from hyperpod_kit.checkpoint.dcp import reshard, sharing
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests, TensorSlice, needs
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.reason import Reason, reason_in
from hyperpod_kit.checkpoint.repository import digest, index, selection, verify
from hyperpod_kit.checkpoint.repository.rows import PieceRows, Rows
from hyperpod_kit.errors import CheckpointError

BYTES = "bytes"
"""Key of the tree that a Writer makes: names of the items that are no tensors, stored as U8 tensors."""


_Targets = list[tuple[ReadItem, torch.Tensor]]


class _Needs(NamedTuple):
    """What one rank asks for: the attempt that it reads, and the chunks."""

    attempt: str
    chunks: tuple[Chunk, ...]


class Reader(StorageReader):
    """A committed checkpoint of `root` as torch.distributed.checkpoint sees it.

    Tensors have the names of the saved state: `model.<fqn>`, `optimizer.state.<fqn>.<key>`, so
    `dcp.load({"model": model.state_dict()}, ...)` fits; names of tied tensors lead to the same bytes. Each chunk is
    read from storage by one rank, compared with its digest, and sent over `process_group` to the ranks that need it
    too. `attempt` is a checkpoint's name; by default the newest whose manifest is intact. `root` and a `checkpoint_id`
    given to `dcp.load` may also be ROOT/ATTEMPT. Unlike `Manager.restore`, damaged data raise an error here and lead to
    no older checkpoint.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        attempt: str | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        place = places.parse(root)
        if not place.root:  # a directory of that name, here
            place = places.DcpLocation(os.path.abspath(os.curdir), place.attempt)
        self._store = place.store()
        self._given = self._wanted = attempt or place.attempt or None
        self.checkpoint_id = f"{os.fspath(root)}/{attempt}" if attempt else os.fspath(root)
        self.load_id = uuid.uuid4().hex
        self._group = process_group
        self._attempt: reshard.Attempt | None = None
        self._rows: Rows = PieceRows({})
        self._alias: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._stored_bytes: set[str] = set()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A `checkpoint_id` is a root, ROOT/ATTEMPT, or the name of an attempt under the present root."""
        self.load_id = uuid.uuid4().hex
        if checkpoint_id:
            place = places.parse(checkpoint_id)
            if place.root:
                before, self._store = self._store.url, place.store()
                self._wanted = place.attempt or (self._given if self._store.url == before else None)
                self.checkpoint_id = os.fspath(checkpoint_id)
            else:
                self._wanted = place.attempt
                self.checkpoint_id = f"{self._store.url}/{place.attempt}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a root of checkpoints, or an attempt under one."""
        return places.is_valid(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """All tensors of the checkpoint. Raises NoCheckpoint, NoValidCheckpoint, CheckpointError, OSError."""
        self._attempt = self._open()
        self._rows = self._attempt.rows()
        extra = verify.read_extra(self._store, self._attempt.name, self._attempt.manifest.extra)
        rank = dist.get_rank() if dist.is_initialized() else 0
        tree = trees.read(self._store, self._attempt.name, extra, rank)
        paths = self._name(tree)
        found: dict[str, Any] = {}
        for name, stored in self._alias.items():
            if name not in self._stored_bytes:
                found[name] = _metadata_of(self._rows[stored])
        found.update({name: BytesStorageMetadata() for name in (*self._values, *self._stored_bytes)})
        return Metadata(
            state_dict_metadata=found,
            planner_data=paths,
            storage_meta=StorageMeta(
                checkpoint_id=self.checkpoint_id, save_id=self._attempt.name, load_id=self.load_id
            ),
        )

    def _open(self) -> reshard.Attempt:
        if self._wanted is not None:
            return self._attempt_of(self._wanted)
        return selection.newest(self._store, self._attempt_of)[0]

    def _attempt_of(self, name: str) -> reshard.Attempt:
        return reshard.Attempt(self._store, name, verify.read_manifest(self._store, name))

    def _name(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Which name of a state dict means which stored tensor or value; the paths that the names came from."""
        written = tree.get("dcp")
        self._alias = {name: name for name in self._rows}
        self._values = {}
        if written is not None:
            self._stored_bytes = set(written[BYTES])
            return {name: tuple(path) for name, path in written["paths"].items()}
        flat, paths = flatten_state_dict(
            {
                key: codec.decode(part, _Named, plain=True)  # type: ignore[arg-type]
                for key, part in tree.items()
            }
        )
        for name, value in flat.items():
            if isinstance(value, _Named):
                self._alias[name] = value.stored
            else:
                self._values[name] = value
        return dict(paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageReader: everything is known from `read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say which chunks this rank's items lie in. Raises DigestUnavailable, CheckpointError."""
        assert self._attempt is not None
        digest.algorithm(self._attempt.manifest.digest)
        slices = [self._slice_of(item) for item in plan.items if self._is_stored(item)]
        chunks = needs(self._rows, slices, self._attempt.manifest.chunk)
        return replace(plan, storage_data=_Needs(self._attempt.name, tuple(chunks)))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Give each chunk to one rank. Raises CheckpointError when the ranks see different checkpoints."""
        seen = {plan.storage_data.attempt for plan in plans}
        if len(seen) > 1:
            raise CheckpointError(
                f"the ranks see different checkpoints: {sorted(seen)}", hint="name one: Reader(root, attempt)"
            )
        work = sharing.divide([plan.storage_data.chunks for plan in plans])
        return [replace(plan, storage_data=work) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planner's tensors. Raises CheckpointError, with the reason of the rank that failed, on all ranks."""
        assert self._attempt is not None
        work: sharing.Work = plan.storage_data
        ranks = Ranks(self._group, alone=len(work.alone) == 1)
        requests = SliceRequests(self._rows)
        chunk = self._attempt.manifest.chunk

        def want() -> tuple[_Targets, _Targets]:
            tensors: _Targets = []
            bodies: _Targets = []
            for item in plan.items:
                if item.type == LoadItemType.TENSOR:
                    tensors.append((item, planner.resolve_tensor(item).detach()))
                    requests.add(self._slice_of(item), tensors[-1][1])
                elif self._is_stored(item):
                    bodies.append((item, requests.add_whole(self._alias[item.storage_index.fqn])))
            requests.freeze(chunk)
            return tensors, bodies

        try:
            ranks.meet(None)
            found = reshard.guarded(want)
            problem = ranks.agree(reason_in(found))
            if problem is None:
                problem = reshard.carry_out(ranks, self._attempt, work, requests)
        finally:
            self._attempt.close()
        if problem is not None:
            raise CheckpointError(
                f"{self._attempt.name}: {problem}", hint=f"hyperpod-kit checkpoint verify {self._store.url}"
            )
        assert not isinstance(found, Reason), "all ranks agreed that there is no problem"
        tensors, bodies = found
        for item, target in tensors:
            planner.commit_tensor(item, target)
        for item, body in bodies:
            planner.load_bytes(item, io.BytesIO(bytes(body.tolist())))
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO and not self._is_stored(item):
                held = io.BytesIO()
                torch.save(self._values[item.storage_index.fqn], held)
                held.seek(0)
                planner.load_bytes(item, held)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _is_stored(self, item: ReadItem) -> bool:
        return item.type == LoadItemType.TENSOR or item.storage_index.fqn in self._stored_bytes

    def _slice_of(self, item: ReadItem) -> TensorSlice:
        name = self._alias[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            whole = self._rows[name][0].spec.whole
            return TensorSlice(name, (0,) * len(whole), whole)
        base: Iterable[int] = item.storage_index.offset or (0,) * len(item.lengths)
        offsets = tuple(a + b for a, b in zip(base, item.storage_offsets, strict=True))
        return TensorSlice(name, offsets, tuple(item.lengths))


class _Named:
    """Stands for a tensor while the tree around it is flattened."""

    def __init__(self, stored: str) -> None:
        self.stored = stored


def _metadata_of(rows: Sequence[index.Piece]) -> TensorStorageMetadata:
    first = rows[0].spec
    chunks = [
        ChunkStorageMetadata(torch.Size(row.spec.offsets or (0,) * len(row.spec.shape)), torch.Size(row.spec.shape))
        for row in rows
    ]
    return TensorStorageMetadata(TensorProperties(dtype=TYPES[first.dtype]), torch.Size(first.whole), chunks)
