"""Tensors that are boxes of larger ones, several of one tensor a rank, cut in any way: Megatron-core's sharded state.

Each box is a tensor of the checkpoint, named after its tensor and its place, and each checkpoint has the list of all
boxes of all ranks. Whoever is cut alike takes its boxes from memory; whoever is cut otherwise fills each from the boxes
that it meets, read from storage.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.state import randomness
from hyperpod_kit.checkpoint.state.fitting import Filling
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.state.tensors import (
    Collector,
    StateTensors,
    TensorPiece,
    TensorUse,
    WalkCache,
    per_rank_name,
)
from hyperpod_kit.errors import CheckpointError, StateNotSerializable, first_line

Extents = tuple[int, ...]
_PAGE = 4096
"""Numbers in an object grow: its shard is laid out anew once a page, not at each save."""


class LocalShard(NamedTuple):
    """`tensor` is the box at `offsets` of a tensor of shape `full_shape`, whose first dimensions it may lack: it is one
    of a stack then. `flexible`: the checkpoint's may be larger or smaller, and what both have is what counts."""

    key: str
    tensor: torch.Tensor
    full_shape: Extents
    offsets: Extents
    flexible: bool = False

    @property
    def name(self) -> str:
        """Return the name under which the shard is stored: that of the whole tensor, where this is all of
        it."""
        return stored_name(self.key, self.offsets, tuple(self.tensor.shape), self.full_shape)


class ShardPlacement(NamedTuple):
    """What the ranks hold together: by key (type, whole shape, [[offsets, shape of the box]]), and the rank that writes
    each object."""

    tensors: dict[str, tuple[str, list[int], list[list[list[int]]]]]
    objects: dict[str, int]


def stored_name(key: str, offsets: Sequence[int], shape: Extents, full_shape: Sequence[int]) -> str:
    """Return the name under which a shard of a tensor is stored: the key, with the offsets unless it
    is the whole tensor."""
    if shape == tuple(full_shape):
        return key
    return f"{key}@{'.'.join(map(str, offsets))}"


def agree_placement(ranks: Ranks, boxes: Iterable[LocalShard], objects: Iterable[str]) -> ShardPlacement:
    """Gather which shards all ranks hold, and which rank writes each object; `objects` are those that
    this rank writes. A collective. Raises CheckpointError where ranks differ in type or shape."""
    local_shards = [
        [box.key, NAMES.get(box.tensor.dtype, str(box.tensor.dtype)), *_extents_as_lists(box)] for box in boxes
    ]
    tensors: dict[str, tuple[str, list[int], list[list[list[int]]]]] = {}
    writers: dict[str, int] = {}
    for rank, (rank_shards, keys) in enumerate(ranks.gather([local_shards, sorted(objects)])):
        for key, dtype, full_shape, offsets, shape in rank_shards:
            entry = tensors.setdefault(key, (dtype, full_shape, []))
            if entry[:2] != (dtype, full_shape):
                raise CheckpointError(
                    f"{key} is {dtype} {full_shape} on rank {rank}, and {entry[0]} {entry[1]} elsewhere"
                )
            if [offsets, shape] not in entry[2]:
                entry[2].append([offsets, shape])
        for key in keys:
            writers.setdefault(key, rank)
    return ShardPlacement(tensors, writers)


class ShardedState(State):
    """`fill` says what it holds before each save and restore: boxes, objects as bytes, of which each is written by one
    rank, and `values`, which are each rank's own. A restore fills the boxes and replaces `values` and `object_data`."""

    def __init__(self, *, rng: bool = True) -> None:
        super().__init__(rng=rng)
        self._boxes: Sequence[LocalShard] = ()
        self._placement = ShardPlacement({}, {})
        self._bytes: Mapping[str, torch.Tensor] = {}
        self.values: dict[str, Any] = {}
        self.object_data: dict[str, bytes] = {}

    def set_contents(
        self,
        boxes: Sequence[LocalShard],
        objects: Mapping[str, torch.Tensor],
        values: dict[str, Any],
        placement: ShardPlacement,
    ) -> None:
        """Set what the next save or restore holds; `objects` are those that this rank has, as U8 tensors."""
        self._boxes, self._bytes, self.values, self._placement = boxes, objects, values, placement

    def check(self, ranks: Ranks) -> None:
        """See State: what it is to hold, the framework says at each save."""

    def tensors(self, ranks: Ranks) -> StateTensors:
        """See State. Raises CheckpointError for a box that no restore has seen."""
        for box in self._boxes:
            entry = self._placement.tensors.get(box.key)
            if entry is None or [list(box.offsets), list(box.tensor.shape)] not in entry[2]:
                raise CheckpointError(
                    f"{box.key} at {list(box.offsets)} did not exist at the load or at the first save",
                    hint="load, or save at first, all that will be saved",
                )
        collector = Collector(ranks, self._cache, ties=False)
        tree = self._collect_tree(ranks, collector)
        return collector.finish_and_add_shared_names(tree)

    def _collect_tree(self, ranks: Ranks, collector: Collector) -> dict[str, Any]:
        prefix = per_rank_name(ranks.rank, "")

        def take_per_rank(path: str, tensor: torch.Tensor) -> str | dict[str, Any]:
            return collector.add_tensor(path, tensor, TensorUse.PER_RANK)

        for key, data in self._bytes.items():
            if self._placement.objects.get(key) == ranks.rank:
                take_per_rank(f"{prefix}objects.{key}", data)
        writers = self._placement.objects.items()
        tree = {
            "extra": {},
            "tensors": {box.name: _tensor_record(self._record_shard(box, collector)) for box in self._boxes},
            "objects": {key: _tensor_record(per_rank_name(rank, f"objects.{key}")) for key, rank in writers},
            "boxes": {key: list(entry) for key, entry in self._placement.tensors.items()},
            "common": codec.encode(self.values, f"{prefix}common", take_per_rank),
        }
        if self.rng:
            tree["rng"] = codec.encode(randomness.capture(), f"{prefix}rng", take_per_rank)
        return tree

    def _record_shard(self, box: LocalShard, collector: Collector) -> str:
        taken = collector.add_tensor(box.name, box.tensor, TensorUse.VALUE)
        if not isinstance(taken, str):
            raise StateNotSerializable(box.name, f"box of a {taken['class']}, which is several tensors")
        return taken

    def names(self, ranks: Ranks) -> dict[str, TensorLayout]:
        """See State."""
        collector = Collector(ranks, WalkCache(), ties=False)
        for box in self._boxes:
            self._record_shard(box, collector)
        return collector.layouts()

    def targets(self, ranks: Ranks, tree: Mapping[str, Any]) -> StateTensors:
        """See State."""
        saved = tree.get("boxes")
        if saved is None:
            raise CheckpointError(
                "it has no list of boxes: it was not written by this adapter", hint="give another root"
            )
        missing = sorted({box.key for box in self._boxes} - set(saved)) or sorted(
            set(self._bytes) - set(tree["objects"])
        )
        if missing:
            raise CheckpointError(f"the checkpoint has no {', '.join(missing[:8])}")
        collector = Collector(ranks, self._cache, ties=False)
        remote_pieces: list[TensorPiece] = []
        for box in self._boxes:
            dtype, full_shape, rows = saved[box.key]
            if tuple(full_shape) != box.full_shape and not box.flexible:
                raise CheckpointError(f"{box.key} is {full_shape} in the checkpoint, {list(box.full_shape)} here")
            if tuple(full_shape) == box.full_shape and [list(box.offsets), list(box.tensor.shape)] in rows:
                self._record_shard(box, collector)
            else:
                remote_pieces += _overlapping_pieces_zeroing_flexible(box, dtype, full_shape, rows)
        local_tensors = collector.finish_and_add_shared_names({})
        live = {piece.spec.name: piece.tensor for piece in local_tensors.pieces}
        self._filling.live = live
        return local_tensors._replace(pieces=(*local_tensors.pieces, *remote_pieces))

    def required_names(self, tree: Mapping[str, Any]) -> set[str]:
        """See State."""
        per_rank_names = [codec.tensor_names(tree.get(part)) for part in ("common", "rng") if part != "rng" or self.rng]
        return {name for names in per_rank_names for name in names} | {
            tree["objects"][key]["name"] for key in self._bytes
        }

    def adopt(self, tree: Mapping[str, Any], loaded: Mapping[str, torch.Tensor]) -> None:
        """See State."""
        self.values = codec.decode(tree["common"], loaded.__getitem__)
        refs = {key: ref["name"] for key, ref in tree["objects"].items()}
        self.object_data = {key: bytes(loaded[name].numpy()) for key, name in refs.items() if name in loaded}
        if self.rng and "rng" in tree:
            self._generators = codec.decode(tree["rng"], loaded.__getitem__)
        else:
            self._generators = None
        self.restore_rng()
        self._filling = Filling()


def torch_save_with_length_and_padding(name: str, value: Any) -> torch.Tensor:
    """Return an object as torch.save writes it, with its length before it and padded, as a U8 tensor.
    Raises StateNotSerializable for what only a pickle of the program's own classes could bring
    back."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as err:
        reason = next((line.strip() for line in str(err).splitlines() if "GLOBAL" in line), str(err))
        raise StateNotSerializable(name, f"object that torch.load(weights_only=True) refuses: {reason}") from err
    body = buffer.getvalue()
    padding = -(8 + len(body)) % _PAGE
    return torch.frombuffer(bytearray(len(body).to_bytes(8, "little") + body + bytes(padding)), dtype=torch.uint8)


def torch_load_with_length(data: bytes) -> Any:
    """Return the object that `torch_save_with_length_and_padding` was given. Raises CheckpointError for what torch does
    not read as one."""
    buffer = io.BytesIO(data[8 : 8 + int.from_bytes(data[:8], "little")])
    try:
        return torch.load(buffer, weights_only=True)
    except Exception as err:  # of any kind: torch lets through whatever its readers raise
        raise CheckpointError(f"an object in the checkpoint cannot be read by torch: {first_line(err)}") from err


def _extents_as_lists(box: LocalShard) -> list[list[int]]:
    return [list(box.full_shape), list(box.offsets), list(box.tensor.shape)]


def _tensor_record(name: str) -> dict[str, str]:
    return {"$": "tensor", "name": name}


def _overlapping_pieces_zeroing_flexible(
    box: LocalShard, dtype: str, full_shape: Sequence[int], rows: Iterable[Any]
) -> Iterator[TensorPiece]:
    """Yield the parts of saved shards that make up this one, and zero a flexible one before. Raises
    CheckpointError when they do not make it up."""
    lead = len(box.full_shape) - box.tensor.dim()
    extents = (1,) * lead + tuple(box.tensor.shape)
    view = box.tensor.detach().view(extents)
    if box.flexible:
        view.zero_()
    count = 0
    for offsets, shape in rows:
        stacked = len(offsets) - len(shape)
        sizes = (1,) * stacked + tuple(shape)
        low = tuple(map(max, offsets, box.offsets))
        common = tuple(
            min(a + m, b + n) - c for a, m, b, n, c in zip(offsets, sizes, box.offsets, extents, low, strict=True)
        )
        if any(extent <= 0 for extent in common):
            continue
        count += math.prod(common)
        part = view
        for dim, extent in enumerate(common):
            part = part.narrow(dim, low[dim] - box.offsets[dim], extent)
        inside = tuple(a - b for a, b in zip(low, offsets, strict=True))[stacked:]
        name = stored_name(box.key, offsets, tuple(shape), full_shape)
        all_of_it = common[stacked:] == tuple(shape)
        spec = TensorSpec(name, dtype, common[stacked:])
        if not all_of_it:
            spec = TensorSpec(name, dtype, common[stacked:], inside, tuple(shape))
        yield TensorPiece(spec, part[(0,) * stacked], (0, 1), None, early=True)
    if count != math.prod(extents) and not box.flexible:
        raise CheckpointError(f"{box.key}: {count} of {math.prod(extents)} elements are in the checkpoint")
