"""Read our checkpoints with torch.distributed.checkpoint: `dcp.load(state_dict, storage_reader=Reader(root))`."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
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

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.dcp import checkpoint_location, reshard, sharing, subclass_parts
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests, TensorSlice, needed_chunks
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, reason_or_none
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import digest, index
from hyperpod_kit.checkpoint.repository.format.rows import PieceRows, Rows
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.errors import CheckpointError

BYTES = "bytes"
"""Key of the tree that a Writer makes: names of the items that are no tensors, stored as U8 tensors."""


class _Targets(NamedTuple):
    """What one rank fills of a load. `bodies`: stored items that are no tensors, as bytes; `parts`: those of subclasses
    that the state dict has no tensor for."""

    tensors: list[tuple[ReadItem, torch.Tensor]]
    bodies: list[tuple[ReadItem, torch.Tensor]]
    parts: list[tuple[ReadItem, dict[str, Any]]]
    subclasses: subclass_parts.SubclassLoad


class _Needs(NamedTuple):
    """What one rank asks for: the attempt that it reads, and the chunks."""

    checkpoint_id: str
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
        location = checkpoint_location.parse(root)
        if not location.root:  # a directory of that name, here
            location = checkpoint_location.DcpLocation(os.path.abspath(os.curdir), location.checkpoint_id)
        self._store = location.store()
        self._given_id = self._requested_id = attempt or location.checkpoint_id or None
        if attempt:
            self.checkpoint_id = f"{os.fspath(root)}/{attempt}"
        else:
            self.checkpoint_id = os.fspath(root)
        self.load_id = uuid.uuid4().hex
        self._group = process_group
        self._checkpoint: reshard.OpenCheckpoint | None = None
        self._rows: Rows = PieceRows({})
        self._alias: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._stored_bytes: set[str] = set()
        self._subclasses: dict[str, subclass_parts.Record] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A `checkpoint_id` is a root, ROOT/ATTEMPT, or the name of an attempt under the present root."""
        self.load_id = uuid.uuid4().hex
        if checkpoint_id:
            location = checkpoint_location.parse(checkpoint_id)
            if location.root:
                previous_url, self._store = self._store.url, location.store()
                self._requested_id = location.checkpoint_id or None
                if self._requested_id is None and self._store.url == previous_url:
                    self._requested_id = self._given_id
                self.checkpoint_id = os.fspath(checkpoint_id)
            else:
                self._requested_id = location.checkpoint_id
                self.checkpoint_id = f"{self._store.url}/{location.checkpoint_id}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a root of checkpoints, or an attempt under one."""
        return checkpoint_location.is_wellformed_root_or_checkpoint(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """All tensors of the checkpoint. Raises NoCheckpoint, NoValidCheckpoint, CheckpointError, OSError."""
        self._checkpoint = self._open_requested_or_newest_intact()
        self._rows = self._checkpoint.read_piece_rows()
        extra = verify.read_verified_small_file(self._store, self._checkpoint.name, self._checkpoint.manifest.extra)
        rank = 0
        if dist.is_initialized():
            rank = dist.get_rank()
        tree = extra_state.read(self._store, self._checkpoint.name, extra, rank)
        paths = self._index_names_and_return_paths(tree)
        items: dict[str, Any] = {}
        for name, stored in self._alias.items():
            if name not in self._stored_bytes:
                items[name] = _tensor_metadata(self._rows[stored])
        # A subclass has no one type and shape that a planner could divide: it is asked for as what is no tensor.
        items.update({name: BytesStorageMetadata() for name in (*self._values, *self._stored_bytes, *self._subclasses)})
        return Metadata(
            state_dict_metadata=items,
            planner_data=paths,
            storage_meta=StorageMeta(
                checkpoint_id=self.checkpoint_id, save_id=self._checkpoint.name, load_id=self.load_id
            ),
        )

    def _open_requested_or_newest_intact(self) -> reshard.OpenCheckpoint:
        if self._requested_id is not None:
            return self._open_by_id(self._requested_id)
        return selection.load_newest_accepted(self._store, self._open_by_id)[0]

    def _open_by_id(self, name: str) -> reshard.OpenCheckpoint:
        return reshard.OpenCheckpoint(self._store, name, verify.read_manifest(self._store, name))

    def _index_names_and_return_paths(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Set which name of a state dict means which stored tensor or value; return the paths that the
        names came from."""
        dcp_tree = tree.get("dcp")
        self._alias = {name: name for name in self._rows}
        self._values = {}
        if dcp_tree is not None:
            self._stored_bytes = set(dcp_tree[BYTES])
            self._subclasses = subclass_parts.subclass_records_in(dcp_tree)
            self._remove_subclass_part_names()
            return {name: tuple(path) for name, path in dcp_tree["paths"].items()}
        flat, paths = flatten_state_dict({key: _decode_with_placeholders(part) for key, part in tree.items()})
        self._subclasses = {
            name: value.record for name, value in flat.items() if isinstance(value, _SubclassPlaceholder)
        }
        self._remove_subclass_part_names()
        for name, value in flat.items():
            if isinstance(value, _TensorPlaceholder):
                self._alias[name] = value.stored
            elif not isinstance(value, _SubclassPlaceholder):
                self._values[name] = value
        return dict(paths)

    def _remove_subclass_part_names(self) -> None:
        """Remove the names of the tensors that a subclass is made of: they are no tensors of the state
        dict."""
        for record in self._subclasses.values():
            for name in subclass_parts.stored_part_names(record):
                self._alias.pop(name, None)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageReader: everything is known from `read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say which chunks this rank's items lie in. Raises DigestUnavailable, CheckpointError."""
        assert self._checkpoint is not None
        digest.algorithm(self._checkpoint.manifest.digest)
        slices = [self._slice_of(item) for item in plan.items if self._is_stored_in_shards(item)]
        chunks = needed_chunks(self._rows, slices, self._checkpoint.manifest.chunk)
        return replace(plan, storage_data=_Needs(self._checkpoint.name, tuple(chunks)))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Give each chunk to one rank. Raises CheckpointError when the ranks see different checkpoints."""
        checkpoint_ids = {plan.storage_data.checkpoint_id for plan in plans}
        if len(checkpoint_ids) > 1:
            raise CheckpointError(
                f"the ranks see different checkpoints: {sorted(checkpoint_ids)}",
                hint="give the checkpoint: Reader(root, attempt)",
            )
        work = sharing.assign_readers([plan.storage_data.chunks for plan in plans])
        return [replace(plan, storage_data=work) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planner's tensors. Raises CheckpointError, with the reason of the rank that failed, on all ranks."""
        assert self._checkpoint is not None
        work: sharing.Work = plan.storage_data
        ranks = Ranks(self._group, alone=len(work.alone) == 1)
        requests = SliceRequests(self._rows)
        try:
            ranks.handshake(None)
            targets = reshard.error_as_reason(partial(self._request_targets, plan, planner, requests))
            problem = ranks.gather_first_reason(reason_or_none(targets))
            if problem is None and self._subclasses:
                # Which chunks the parts of a subclass lie in is not known before the planner's own tensors are.
                work = sharing.freeze_requests_and_assign_readers(ranks, requests, self._checkpoint.manifest.chunk)
            if problem is None:
                problem = reshard.read_and_distribute(ranks, self._checkpoint, work, requests)
            if problem is None and self._subclasses and not isinstance(targets, Reason):
                problem = ranks.gather_first_reason(
                    reason_or_none(reshard.error_as_reason(targets.subclasses.assign_loaded_parts))
                )
        finally:
            self._checkpoint.close()
        if problem is not None:
            raise CheckpointError(
                f"{self._checkpoint.name}: {problem}", hint=f"hyperpod-kit checkpoint verify {self._store.url}"
            )
        assert not isinstance(targets, Reason), "all ranks agreed that there is no problem"
        self._commit_to_planner(plan, planner, targets)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _request_targets(self, plan: LoadPlan, planner: LoadPlanner, requests: SliceRequests) -> _Targets:
        """Add requests for everything that the planner fills, and return the targets. Raises
        CheckpointError for what does not fit."""
        assert self._checkpoint is not None
        targets = _Targets([], [], [], subclass_parts.SubclassLoad(self._rows, requests))
        values: dict[str, Any] = getattr(planner, "state_dict", {})
        for item in plan.items:
            name = item.storage_index.fqn
            value = values.get(item.dest_index.fqn)
            if item.type == LoadItemType.TENSOR:
                if isinstance(value, torch.Tensor):
                    subclass_parts.refuse_unsaved_subclass(name, value)
                target = sharding.wait_for_collective(planner.resolve_tensor(item)).detach()
                targets.tensors.append((item, target))
                requests.add(self._slice_of(item), target)
            elif self._is_stored_in_shards(item):
                targets.bodies.append((item, requests.request_full_in_new_tensor(self._alias[name])))
            elif name in self._subclasses:
                self._request_subclass(item, value, targets)
        requests.freeze_and_list_own_and_common_chunks(self._checkpoint.manifest.chunk)
        return targets

    def _request_subclass(self, item: ReadItem, value: Any, targets: _Targets) -> None:
        record = self._subclasses[item.storage_index.fqn]
        if isinstance(value, torch.Tensor):
            targets.subclasses.request(item.storage_index.fqn, record, value)
        else:
            targets.parts.append((item, targets.subclasses.request_parts_in_new_memory(record)))

    def _commit_to_planner(self, plan: LoadPlan, planner: LoadPlanner, targets: _Targets) -> None:
        """Pass the filled tensors and the other values to the planner."""
        for item, tensor in targets.tensors:
            planner.commit_tensor(item, tensor)
        for item, body in targets.bodies:
            planner.load_bytes(item, io.BytesIO(bytes(body.tolist())))
        for item, parts in targets.parts:
            planner.load_bytes(item, _torch_saved_stream(parts))
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO and item.storage_index.fqn in self._values:
                planner.load_bytes(item, _torch_saved_stream(self._values[item.storage_index.fqn]))

    def _is_stored_in_shards(self, item: ReadItem) -> bool:
        return item.type == LoadItemType.TENSOR or item.storage_index.fqn in self._stored_bytes

    def _slice_of(self, item: ReadItem) -> TensorSlice:
        name = self._alias[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            full_shape = self._rows[name][0].spec.full_shape
            return TensorSlice(name, (0,) * len(full_shape), full_shape)
        base: Iterable[int] = item.storage_index.offset or (0,) * len(item.lengths)
        offsets = tuple(a + b for a, b in zip(base, item.storage_offsets, strict=True))
        return TensorSlice(name, offsets, tuple(item.lengths))


class _TensorPlaceholder:
    """Stands for a tensor while the tree around it is flattened."""

    def __init__(self, stored: str) -> None:
        self.stored = stored


class _SubclassPlaceholder:
    """Stands for a subclass, in the same way."""

    def __init__(self, record: subclass_parts.Record) -> None:
        self.record = record


def _decode_with_placeholders(part: Any) -> Any:
    """Return a part of a Manager's tree with placeholders for tensors and subclasses."""
    subclasses = {
        record["name"]: _SubclassPlaceholder(record)
        for record in codec.iter_tensor_and_subclass_records(part)
        if record["$"] == "subclass"
    }
    return codec.decode(part, _TensorPlaceholder, filled_subclasses=subclasses, plain=True)  # type: ignore[arg-type]


def _torch_saved_stream(value: Any) -> io.BytesIO:
    """Return a value as torch.save writes it, which is what a planner takes for what is no tensor."""
    body = io.BytesIO()
    torch.save(value, body)
    body.seek(0)
    return body


def _tensor_metadata(rows: Sequence[index.Piece]) -> TensorStorageMetadata:
    first = rows[0].spec
    chunks = [
        ChunkStorageMetadata(torch.Size(row.spec.offsets or (0,) * len(row.spec.shape)), torch.Size(row.spec.shape))
        for row in rows
    ]
    return TensorStorageMetadata(TensorProperties(dtype=TYPES[first.dtype]), torch.Size(first.full_shape), chunks)
