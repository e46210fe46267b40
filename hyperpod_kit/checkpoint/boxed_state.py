"""Tensors that are boxes of larger ones, several of one tensor a rank, cut in any way: Megatron-core's sharded state.

Each box is a tensor of the checkpoint, named after its tensor and its place, and each checkpoint has the list of all
boxes of all ranks. Whoever is cut alike takes its boxes from memory; whoever is cut otherwise fills each from the boxes
that it meets, read from storage.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import codec, randomness
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dtypes import NAMES
from hyperpod_kit.checkpoint.fitting import Filling
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.submeshes import TensorLayout
from hyperpod_kit.checkpoint.tensors import Collector, Known, StateTensors, TensorPiece, TensorUse, own_name
from hyperpod_kit.errors import CheckpointError, StateNotSerializable, first_line

Extents = tuple[int, ...]
_PAGE = 4096
"""Numbers in an object grow: its shard is laid out anew once a page, not at each save."""


class TensorBox(NamedTuple):
    """`tensor` is the box at `offsets` of a tensor of shape `whole`, whose first dimensions it may lack: it is one of
    a stack then. `flexible`: the checkpoint's may be larger or smaller, and what both have is what counts."""

    key: str
    tensor: torch.Tensor
    whole: Extents
    offsets: Extents
    flexible: bool = False

    @property
    def name(self) -> str:
        """That of the whole tensor, where this is all of it."""
        return name_of(self.key, self.offsets, tuple(self.tensor.shape), self.whole)


class KnownBoxes(NamedTuple):
    """What the ranks hold together: by key (type, whole shape, [[offsets, shape of the box]]), and the rank that writes
    each object."""

    tensors: dict[str, tuple[str, list[int], list[list[list[int]]]]]
    objects: dict[str, int]


def name_of(key: str, offsets: Sequence[int], shape: Extents, whole: Sequence[int]) -> str:
    """Under which name the box is stored."""
    return key if shape == tuple(whole) else f"{key}@{'.'.join(map(str, offsets))}"


def meet(ranks: Ranks, boxes: Iterable[TensorBox], objects: Iterable[str]) -> KnownBoxes:
    """What all ranks hold. `objects` are those that this rank writes. A collective. Raises CheckpointError."""
    mine = [[box.key, NAMES.get(box.tensor.dtype, str(box.tensor.dtype)), *_lists(box)] for box in boxes]
    tensors: dict[str, tuple[str, list[int], list[list[list[int]]]]] = {}
    writers: dict[str, int] = {}
    for rank, (theirs, keys) in enumerate(ranks.gather([mine, sorted(objects)])):
        for key, dtype, whole, offsets, shape in theirs:
            known = tensors.setdefault(key, (dtype, whole, []))
            if known[:2] != (dtype, whole):
                raise CheckpointError(f"{key} is {dtype} {whole} on rank {rank}, and {known[0]} {known[1]} elsewhere")
            if [offsets, shape] not in known[2]:
                known[2].append([offsets, shape])
        for key in keys:
            writers.setdefault(key, rank)
    return KnownBoxes(tensors, writers)


class BoxedState(State):
    """`fill` says what it holds before each save and restore: boxes, objects as bytes, of which each is written by one
    rank, and `values`, which are each rank's own. A restore fills the boxes and replaces `values` and `found`."""

    def __init__(self, *, rng: bool = True) -> None:
        super().__init__(rng=rng)
        self._boxes: Sequence[TensorBox] = ()
        self._known_boxes = KnownBoxes({}, {})
        self._bytes: Mapping[str, torch.Tensor] = {}
        self.values: dict[str, Any] = {}
        self.found: dict[str, bytes] = {}

    def fill(
        self,
        boxes: Sequence[TensorBox],
        objects: Mapping[str, torch.Tensor],
        values: dict[str, Any],
        known: KnownBoxes,
    ) -> None:
        """`objects` are those that this rank has, as U8 tensors."""
        self._boxes, self._bytes, self.values, self._known_boxes = boxes, objects, values, known

    def check(self, ranks: Ranks) -> None:
        """See State: what it is to hold, the framework says at each save."""

    def tensors(self, ranks: Ranks) -> StateTensors:
        """See State. Raises CheckpointError for a box that no restore has seen."""
        for box in self._boxes:
            held = self._known_boxes.tensors.get(box.key)
            if held is None or [list(box.offsets), list(box.tensor.shape)] not in held[2]:
                raise CheckpointError(
                    f"{box.key} at {list(box.offsets)} was not there at the load or at the first save",
                    hint="load, or save at first, all that will be saved",
                )
        collector = Collector(ranks, self._known, ties=False)
        tree = self._tree(ranks, collector)
        return collector.finish(tree)

    def _tree(self, ranks: Ranks, collector: Collector) -> dict[str, Any]:
        prefix = own_name(ranks.rank, "")

        def mine(path: str, tensor: torch.Tensor) -> str | dict[str, Any]:
            return collector.take(path, tensor, TensorUse.OWN)

        for key, data in self._bytes.items():
            if self._known_boxes.objects.get(key) == ranks.rank:
                mine(f"{prefix}objects.{key}", data)
        writers = self._known_boxes.objects.items()
        tree = {
            "extra": {},
            "tensors": {box.name: _ref(self._take(box, collector)) for box in self._boxes},
            "objects": {key: _ref(own_name(rank, f"objects.{key}")) for key, rank in writers},
            "boxes": {key: list(held) for key, held in self._known_boxes.tensors.items()},
            "common": codec.encode(self.values, f"{prefix}common", mine),
        }
        if self.rng:
            tree["rng"] = codec.encode(randomness.capture(), f"{prefix}rng", mine)
        return tree

    def _take(self, box: TensorBox, collector: Collector) -> str:
        taken = collector.take(box.name, box.tensor, TensorUse.VALUE)
        if not isinstance(taken, str):
            raise StateNotSerializable(box.name, f"box of a {taken['class']}, which is several tensors")
        return taken

    def names(self, ranks: Ranks) -> dict[str, TensorLayout]:
        """See State."""
        collector = Collector(ranks, Known(), ties=False)
        for box in self._boxes:
            self._take(box, collector)
        return collector.layouts()

    def targets(self, ranks: Ranks, tree: Mapping[str, Any]) -> StateTensors:
        """See State."""
        saved = tree.get("boxes")
        if saved is None:
            raise CheckpointError("it has no list of boxes: it is not of this adapter", hint="give another root")
        missing = sorted({box.key for box in self._boxes} - set(saved)) or sorted(
            set(self._bytes) - set(tree["objects"])
        )
        if missing:
            raise CheckpointError(f"the checkpoint has no {', '.join(missing[:8])}")
        collector = Collector(ranks, self._known, ties=False)
        others: list[TensorPiece] = []
        for box in self._boxes:
            dtype, whole, rows = saved[box.key]
            if tuple(whole) != box.whole and not box.flexible:
                raise CheckpointError(f"{box.key} is {whole} in the checkpoint, {list(box.whole)} here")
            if tuple(whole) == box.whole and [list(box.offsets), list(box.tensor.shape)] in rows:
                self._take(box, collector)
            else:
                others += _from_others(box, dtype, whole, rows)
        found = collector.finish({})
        live = {piece.spec.name: piece.tensor for piece in found.pieces}
        self._filling.live = live
        return replace(found, pieces=(*found.pieces, *others))

    def wants(self, tree: Mapping[str, Any]) -> set[str]:
        """See State."""
        own = [codec.tensor_names(tree.get(part)) for part in ("common", "rng") if part != "rng" or self.rng]
        return {name for names in own for name in names} | {tree["objects"][key]["name"] for key in self._bytes}

    def adopt(self, tree: Mapping[str, Any], loaded: Mapping[str, torch.Tensor]) -> None:
        """See State."""
        self.values = codec.decode(tree["common"], loaded.__getitem__)
        refs = {key: ref["name"] for key, ref in tree["objects"].items()}
        self.found = {key: bytes(loaded[name].numpy()) for key, name in refs.items() if name in loaded}
        self._generators = codec.decode(tree["rng"], loaded.__getitem__) if self.rng and "rng" in tree else None
        self.restore_rng()
        self._filling = Filling()


def object_bytes(name: str, value: Any) -> torch.Tensor:
    """As torch.save writes it, with its length before it. Raises StateNotSerializable for what only a pickle of the
    program's own classes could bring back."""
    held = io.BytesIO()
    torch.save(value, held)
    held.seek(0)
    try:
        torch.load(held, weights_only=True)
    except Exception as err:
        why = next((line.strip() for line in str(err).splitlines() if "GLOBAL" in line), str(err))
        raise StateNotSerializable(name, f"object that torch.load(weights_only=True) refuses: {why}") from err
    body = held.getvalue()
    padding = -(8 + len(body)) % _PAGE
    return torch.frombuffer(bytearray(len(body).to_bytes(8, "little") + body + bytes(padding)), dtype=torch.uint8)


def object_of(data: bytes) -> Any:
    """What `object_bytes` was given. Raises CheckpointError for what torch does not read as one."""
    words = io.BytesIO(data[8 : 8 + int.from_bytes(data[:8], "little")])
    try:
        return torch.load(words, weights_only=True)
    except Exception as err:  # of any kind: torch lets through whatever its readers raise
        raise CheckpointError(f"an object in the checkpoint cannot be read by torch: {first_line(err)}") from err


def _lists(box: TensorBox) -> list[list[int]]:
    return [list(box.whole), list(box.offsets), list(box.tensor.shape)]


def _ref(name: str) -> dict[str, str]:
    return {"$": "tensor", "name": name}


def _from_others(box: TensorBox, dtype: str, whole: Sequence[int], rows: Iterable[Any]) -> Iterator[TensorPiece]:
    """The parts of saved boxes that make up this one. Raises CheckpointError when they do not."""
    lead = len(box.whole) - box.tensor.dim()
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
        name = name_of(box.key, offsets, tuple(shape), whole)
        all_of_it = common[stacked:] == tuple(shape)
        spec = TensorSpec(name, dtype, common[stacked:], () if all_of_it else inside, () if all_of_it else tuple(shape))
        yield TensorPiece(spec, part[(0,) * stacked], (0, 1), None, early=True)
    if count != math.prod(extents) and not box.flexible:
        raise CheckpointError(f"{box.key}: {count} of {math.prod(extents)} elements are in the checkpoint")
