"""Two checkpoints compared tensor by tensor, every byte of both proved, in memory that does not grow with them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress, no_progress
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests, TensorSlice
from hyperpod_kit.checkpoint.diffing.items import ItemDifference, compare
from hyperpod_kit.checkpoint.repository.format import non_tensor_state
from hyperpod_kit.checkpoint.repository.format.index import Piece
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.restore import gathered_tensors
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line

_BLOCK = 16 << 20
"""Bytes of a tensor that are compared at once."""
_BATCH = 64 << 20
"""Bytes of a checkpoint that are held at once."""
_NOT_STATE = ("held", "records", "replicas", "save")
"""Keys of a tree that say how it was saved."""


class CheckpointAt(NamedTuple):
    """A committed checkpoint."""

    store: Store
    checkpoint_id: str


@dataclass(frozen=True)
class TensorForm:
    """A tensor's type and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass
class CheckpointDiff:
    """What is different in `after`, by the names of tensors, and by the paths of other values (as JSON; None where
    there is none)."""

    before: str
    after: str
    added: dict[str, TensorForm] = field(default_factory=dict)
    removed: dict[str, TensorForm] = field(default_factory=dict)
    reshaped: dict[str, tuple[TensorForm, TensorForm]] = field(default_factory=dict)
    changed: dict[str, ItemDifference] = field(default_factory=dict)
    equal: int = 0
    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether they are the same state."""
        return not (self.added or self.removed or self.reshaped or self.changed or self.values)


class _StoredNames(NamedTuple):
    """What one tensor is stored as in the two: a tied one may have its other name in one of them."""

    before: str
    after: str


class _Block(NamedTuple):
    """Part of a tensor that has `name` in the difference."""

    name: str
    names: _StoredNames
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


def diff(before: CheckpointAt, after: CheckpointAt, progress: Progress = no_progress) -> CheckpointDiff:
    """Compare two checkpoints, which may be divided among other numbers of ranks.

    Args:
        before: The one.
        after: The other, of the same root or another one.
        progress: Hears of the bytes that were read and proved.

    Returns:
        What is different. Tensors count as equal when all their bits are.

    Raises:
        CheckpointError: One of them is damaged; also StorageUnreadable, DigestUnavailable, OSError.
    """
    bodies = [verify.read_manifest(side.store, side.checkpoint_id) for side in (before, after)]
    saved = [
        extra_state.merge_stage_trees(verify.read_verified_small_file(side.store, side.checkpoint_id, body.extra))
        for side, body in zip((before, after), bodies, strict=True)
    ]
    values = [_non_tensor_values(tree) for tree in saved]
    comparison = CheckpointDiff(before.checkpoint_id, after.checkpoint_id)
    for path in sorted({*values[0], *values[1]}):
        pair = values[0].get(path), values[1].get(path)
        if pair[0] != pair[1] or (path in values[0]) != (path in values[1]):
            comparison.values[path] = pair
    counted = CountedBytes(sum(body.total_bytes for body in bodies), progress)
    with contextlib.ExitStack() as stack:
        checkpoints = (
            stack.enter_context(reshard.open_checkpoint(before.store, before.checkpoint_id, bodies[0])),
            stack.enter_context(reshard.open_checkpoint(after.store, after.checkpoint_id, bodies[1])),
        )
        _record_tensor_differences(
            checkpoints, [dict(non_tensor_state.tensor_paths_and_names(tree)) for tree in saved], comparison, counted
        )
    return comparison


def _record_tensor_differences(
    checkpoints: tuple[reshard.OpenCheckpoint, reshard.OpenCheckpoint],
    stored: Sequence[Mapping[non_tensor_state.Path, str]],
    comparison: CheckpointDiff,
    counted: CountedBytes,
) -> None:
    rows = [checkpoint.read_piece_rows() for checkpoint in checkpoints]
    before, after = map(_forms, rows)
    common = {name: _StoredNames(name, name) for name in before if name in after}
    common.update(_names_tied_in_one(before, after, stored))
    names_before, names_after = ({names[side] for names in common.values()} for side in (0, 1))
    comparison.removed = {name: form for name, form in before.items() if name not in names_before}
    comparison.added = {name: form for name, form in after.items() if name not in names_after}
    comparison.reshaped = {
        name: (before[names.before], after[names.after])
        for name, names in common.items()
        if before[names.before] != after[names.after]
    }
    comparable = {name: names for name, names in common.items() if name not in comparison.reshaped}
    differences = _differences(checkpoints, rows, comparable, before, counted)
    comparison.changed = {name: difference for name, difference in differences.items() if difference.changed}
    comparison.equal = len(comparable) - len(comparison.changed)


def _differences(
    checkpoints: tuple[reshard.OpenCheckpoint, reshard.OpenCheckpoint],
    rows: Sequence[Rows],
    comparable: Mapping[str, _StoredNames],
    forms: Mapping[str, TensorForm],
    counted: CountedBytes,
) -> dict[str, ItemDifference]:
    """Return the differences of tensors that have the same type and shape in both, compared block by block."""
    differences: dict[str, ItemDifference] = dict.fromkeys(comparable, ItemDifference())
    for batch in _batches(rows[0], comparable, forms):
        before, after = (_read_blocks(checkpoints[side], rows[side], batch, side) for side in (0, 1))
        for block, saved_before, saved_after in zip(batch, before, after, strict=True):
            differences[block.name] = differences[block.name].join(compare(saved_before, saved_after))
        counted(2 * sum(block.nbytes for block in batch))
    return differences


def _names_tied_in_one(
    before: Mapping[str, TensorForm],
    after: Mapping[str, TensorForm],
    stored: Sequence[Mapping[non_tensor_state.Path, str]],
) -> dict[str, _StoredNames]:
    """Return the names of tensors that are tied to another one in one of the two alone, and so have no name of
    their own there."""
    tied: dict[str, _StoredNames] = {}
    for path in stored[0].keys() & stored[1].keys():
        names = _StoredNames(stored[0][path], stored[1][path])
        if names.before == names.after:
            continue
        for name, forms in zip(names, (before, after), strict=True):
            if name not in forms:
                raise CheckpointError(
                    f"{clean_one_line(non_tensor_state.dotted_path(path))} is in no shard, under "
                    f"{clean_one_line(name)!r}"
                )
        if names.after not in before:
            tied[names.after] = names
        else:
            tied[names.before] = names
    return tied


def _forms(rows: Rows) -> dict[str, TensorForm]:
    """Return each tensor's type and shape, in the order of the names."""
    specs = {name: rows[name][0].spec for name in sorted(rows)}
    return {name: TensorForm(spec.dtype, tuple(spec.full_shape)) for name, spec in specs.items()}


def _batches(rows: Rows, common: Mapping[str, _StoredNames], forms: Mapping[str, TensorForm]) -> Iterator[list[_Block]]:
    """Yield blocks of all these tensors in batches, in the order in which they lie in the first checkpoint."""
    batch: list[_Block] = []
    size = 0
    for name, names in sorted(common.items(), key=lambda item: _shard_offset(rows[item[1].before])):
        form = forms[names.before]
        for offsets, extents in blocks(form.shape, _BLOCK // ITEM_BYTES[form.dtype]):
            block = _Block(name, names, offsets, extents, form.dtype)
            batch.append(block)
            size += block.nbytes
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _shard_offset(pieces: Sequence[Piece]) -> tuple[int, int]:
    return pieces[0].shard, pieces[0].begin


def _read_blocks(checkpoint: reshard.OpenCheckpoint, rows: Rows, batch: list[_Block], side: int) -> list[torch.Tensor]:
    requests = SliceRequests(rows)
    tensors = [torch.empty(block.shape, dtype=TYPES[block.dtype], device="cpu") for block in batch]
    for block, tensor in zip(batch, tensors, strict=True):
        requests.add(TensorSlice(block.names[side], block.offsets, block.shape), tensor)
    gathered_tensors.fill_requested_slices_alone(checkpoint, requests)
    return tensors


def _non_tensor_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values besides tensors, by their paths; a list of plain values is one of them."""
    values: dict[str, Any] = {}
    todo = [(str(key), value) for key, value in tree.items() if key not in _NOT_STATE]
    characters = 0
    while todo:
        path, value = todo.pop()
        inside = 0
        if isinstance(value, (dict, list)):
            inside = len(value)
        characters += len(path) * (1 + inside)
        non_tensor_state.require_names_in_bounds(characters)
        if isinstance(value, dict) and value.get("$") in ("tensor", "subclass"):
            continue
        if isinstance(value, dict) and "$" not in value:
            todo += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
            todo += [(f"{path}.{number}", inner) for number, inner in enumerate(value)]
        else:
            values[path] = value
    return values


def value_text(value: Any, limit: int = 40) -> str:
    """A value in one short line, for people."""
    text = "absent"
    if value is not None:
        text = json.dumps(value)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


# Large tensors in blocks of bounded size, each of which is one run of bytes in whatever piece it lies.

Extents = tuple[int, ...]


def blocks(shape: Extents, most: int) -> Iterator[tuple[Extents, Extents]]:
    """(offsets, extents) of blocks of at most `most` items that make up a tensor of this shape, in its order."""
    if math.prod(shape) <= most:
        yield (0,) * len(shape), shape
        return
    row = math.prod(shape[1:])
    if row > most:
        for at in range(shape[0]):
            for offsets, extents in blocks(shape[1:], most):
                yield (at, *offsets), (1, *extents)
        return
    step = most // row
    for at in range(0, shape[0], step):
        yield (at, *(0,) * (len(shape) - 1)), (min(step, shape[0] - at), *shape[1:])
