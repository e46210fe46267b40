"""Tensor subclasses in a plan of torch.distributed.checkpoint, which knows one type and shape of each: they are written
and filled by the tensors that they are made of, as a Manager does it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.codec import codec, sharding, subclasses, unsavable
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests, TensorSlice, require_same_type_and_shape_if_saved
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.state import fitting
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

SUBCLASSES = "subclasses"
"""Key of the tree that a Writer makes: the text of the records of all subclasses, by name. A text, so that whoever
walks over the tree for tensors sees none that are not all of the checkpoint's."""

Record = dict[str, Any]


class WrittenPart(NamedTuple):
    """What a rank writes of a tensor inside a subclass."""

    spec: TensorSpec
    tensor: torch.Tensor


class WrittenSubclass(NamedTuple):
    """A subclass as it is written: its record, and this rank's parts of it."""

    record: Record
    parts: tuple[WrittenPart, ...]


def split_subclass(name: str, tensor: Any) -> WrittenSubclass | None:
    """Split a tensor subclass, or a DTensor of them, into its parts; None for any other value. Raises
    StateNotSerializable for one that cannot be taken apart."""
    if not isinstance(tensor, torch.Tensor):
        return None
    tensor = sharding.wait_for_collective(tensor)
    apart = subclasses.take_apart(name, tensor)
    if apart is None:
        return None
    record: Record = {**codec.subclass_record_without_parts(apart), "name": name, "parts": {}}
    parts: list[WrittenPart] = []
    for part in apart.parts:
        part_name = f"{name}.{part.name}"
        nested = split_subclass(part_name, part.tensor)
        if nested is not None:
            record["parts"][part.name] = nested.record
            parts += nested.parts
            continue
        record["parts"][part.name] = subclasses.part_record(part_name, part)
        parts.append(_written_part(part_name, part.tensor))
    return WrittenSubclass(record, tuple(parts))


def encode_subclass_records(records: Mapping[str, Record]) -> str:
    """Return the records of a checkpoint as the text that its tree has."""
    return json.dumps(records, separators=(",", ":"), allow_nan=False)


def subclass_records_in(tree: Mapping[str, Any]) -> dict[str, Record]:
    """Return the records of all subclasses in the tree that a Writer made, by name."""
    return dict(json.loads(tree.get(SUBCLASSES, "{}")))


def stored_part_names(record: Record) -> Iterator[str]:
    """The stored names of all tensors that a subclass is made of."""
    for part in record["parts"].values():
        if part["$"] == "subclass":
            yield from stored_part_names(part)
        else:
            yield str(part["name"])


def part_paths(record: Record, path: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(stored name, where it belongs in the nested state dict) of each of them; `path` leads to the subclass."""
    for key, part in record["parts"].items():
        if part["$"] == "subclass":
            yield from part_paths(part, (*path, key))
        else:
            yield str(part["name"]), (*path, key)


class SubclassLoad:
    """The subclasses of a load: filled where they lie."""

    def __init__(self, rows: Rows, requests: SliceRequests) -> None:
        self._rows, self._requests = rows, requests
        self._filling = fitting.Filling()
        self._stacks: dict[str, torch.Tensor] = {}

    def request(self, name: str, record: Record, tensor: Any) -> None:
        """Request what fills a tensor subclass of the state dict, part by part. Raises CheckpointError
        where it is not what was saved."""
        tensor = sharding.wait_for_collective(tensor)
        apart = subclasses.take_apart(name, tensor)
        head = None
        if apart is not None:
            head = codec.subclass_record_without_parts(apart)
        problem = subclasses.describe_difference(name, record, head)
        if problem is not None:
            raise CheckpointError(problem, hint=f"create {name} as the program that saved it did")
        assert apart is not None, "a plain tensor is unlike any subclass"
        targets = _PartTargets(record, apart)
        self._filling.match_subclass_parts(record, tensor, apart, targets)
        for stored in targets.stacked:
            self._stacks[stored] = self._requests.request_full_in_new_tensor(stored)
        for stored, part in targets.tensors.items():
            self._request_part(stored, part)
        for key, nested in targets.nested.items():
            self.request(f"{name}.{key}", record["parts"][key], nested)

    def request_parts_in_new_memory(self, record: Record) -> dict[str, Any]:
        """Request all parts of a subclass that the state dict has no tensor for, whole, in new memory;
        return them by key."""
        parts: dict[str, Any] = {}
        for key, part in record["parts"].items():
            if part["$"] == "subclass":
                parts[key] = self.request_parts_in_new_memory(part)
            else:
                parts[key] = self._requests.request_full_in_new_tensor(str(part["name"]))
        return parts

    def _request_part(self, stored: str, tensor: Any) -> None:
        require_same_type_and_shape_if_saved(self._rows, stored, NAMES[tensor.dtype], tuple(tensor.shape))
        offsets, shape = _local_offsets_and_shape(tensor)
        self._requests.add(TensorSlice(stored, offsets, shape), sharding.local(tensor).detach())

    def assign_loaded_parts(self) -> None:
        """Set the parts on the subclasses, once all bytes are read. Raises CheckpointError for a part that
        several ranks had each for itself."""
        self._filling.assign_loaded_parts(self._stacks)


def refuse_unsaved_subclass(name: str, target: torch.Tensor) -> None:
    """Raise CheckpointError for a tensor subclass in the state dict of which the checkpoint has a
    plain tensor: it has no memory of its own to be filled."""
    local = sharding.wait_for_collective(sharding.unwrap_dtensor(target))
    if sharding.is_plain(local) or sharding.is_sharded(local):
        return
    apart = subclasses.take_apart(name, local)
    head = None
    if apart is not None:
        head = codec.subclass_record_without_parts(apart)
    raise CheckpointError(
        str(subclasses.describe_difference(name, None, head)), hint=f"create {name} as the program that saved it did"
    )


class _PartTargets:
    """The parts of one subclass that are filled, by the names of the checkpoint (`fitting.Targets`)."""

    def __init__(self, record: Record, apart: subclasses.TakenApart) -> None:
        saved = record["parts"]
        tensors = {part.name: part.tensor for part in apart.parts if part.name in saved}
        self.tensors = {saved[key]["name"]: tensor for key, tensor in tensors.items() if saved[key]["$"] == "tensor"}
        self.nested = {key: tensor for key, tensor in tensors.items() if saved[key]["$"] != "tensor"}
        self.stacked: list[str] = []

    def add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        self.tensors[path] = tensor

    def drop(self, names: Iterable[str]) -> None:
        self.stacked += [name for name in names if self.tensors.pop(name, None) is not None]


def _written_part(name: str, tensor: Any) -> WrittenPart:
    local = sharding.local(tensor)
    unsavable.require_savable(name, local)
    offsets, shape = _local_offsets_and_shape(tensor)
    if tuple(local.shape) != shape:
        raise StateNotSerializable(name, f"DTensor whose local shape is {tuple(local.shape)}, expected {shape}")
    global_shape = tuple(tensor.shape)
    if shape == global_shape:
        return WrittenPart(TensorSpec(name, NAMES[local.dtype], shape), local)
    return WrittenPart(TensorSpec(name, NAMES[local.dtype], shape, offsets, global_shape), local)


def _local_offsets_and_shape(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where this rank's part lies in the whole tensor, and its shape."""
    if not sharding.is_dtensor(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets), tuple(shape)
