"""Two checkpoints compared tensor by tensor, every byte of both proved, in memory that does not grow with them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import whole_tensors
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests, TensorSlice
from hyperpod_kit.checkpoint.diffing.blocks import blocks
from hyperpod_kit.checkpoint.diffing.items import ItemDifference, compare
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress, unsaid
from hyperpod_kit.checkpoint.repository import non_tensor_state, verify
from hyperpod_kit.checkpoint.repository.index import Piece
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean

_BLOCK = 16 << 20
"""Bytes of a tensor that are compared at once."""
_BATCH = 64 << 20
"""Bytes of a checkpoint that are held at once."""
_NOT_STATE = ("held", "records", "replicas", "save")
"""Keys of a tree that say how it was saved."""


class CheckpointAt(NamedTuple):
    """A committed checkpoint."""

    store: Store
    attempt: str


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


def diff(before: CheckpointAt, after: CheckpointAt, progress: Progress = unsaid) -> CheckpointDiff:
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
    bodies = [verify.read_manifest(at.store, at.attempt) for at in (before, after)]
    saved = [
        extra_state.merge_trees(verify.read_extra(at.store, at.attempt, body.extra))
        for at, body in zip((before, after), bodies, strict=True)
    ]
    values = [_values(tree) for tree in saved]
    made = CheckpointDiff(before.attempt, after.attempt)
    for path in sorted({*values[0], *values[1]}):
        pair = values[0].get(path), values[1].get(path)
        if pair[0] != pair[1] or (path in values[0]) != (path in values[1]):
            made.values[path] = pair
    counted = CountedBytes(sum(body.total_bytes for body in bodies), progress)
    with contextlib.ExitStack() as stack:
        attempts = (
            stack.enter_context(reshard.opened(before.store, before.attempt, bodies[0])),
            stack.enter_context(reshard.opened(after.store, after.attempt, bodies[1])),
        )
        _compare_tensors(attempts, [dict(non_tensor_state.tensors(tree)) for tree in saved], made, counted)
    return made


def _compare_tensors(
    attempts: tuple[reshard.Attempt, reshard.Attempt],
    stored: Sequence[Mapping[non_tensor_state.Path, str]],
    made: CheckpointDiff,
    counted: CountedBytes,
) -> None:
    rows = [attempt.rows() for attempt in attempts]
    before, after = map(_forms, rows)
    common = {name: _StoredNames(name, name) for name in before if name in after}
    common.update(_tied(before, after, stored))
    known_before, known_after = ({names[side] for names in common.values()} for side in (0, 1))
    made.removed = {name: form for name, form in before.items() if name not in known_before}
    made.added = {name: form for name, form in after.items() if name not in known_after}
    made.reshaped = {
        name: (before[names.before], after[names.after])
        for name, names in common.items()
        if before[names.before] != after[names.after]
    }
    alike = {name: names for name, names in common.items() if name not in made.reshaped}
    differences = _differences(attempts, rows, alike, before, counted)
    made.changed = {name: difference for name, difference in differences.items() if difference.changed}
    made.equal = len(alike) - len(made.changed)


def _differences(
    attempts: tuple[reshard.Attempt, reshard.Attempt],
    rows: Sequence[Rows],
    alike: Mapping[str, _StoredNames],
    forms: Mapping[str, TensorForm],
    counted: CountedBytes,
) -> dict[str, ItemDifference]:
    """Of tensors of the same type and shape in both, block by block."""
    differences: dict[str, ItemDifference] = dict.fromkeys(alike, ItemDifference())
    for batch in _batches(rows[0], alike, forms):
        before, after = (_read(attempts[side], rows[side], batch, side) for side in (0, 1))
        for block, saved_before, saved_after in zip(batch, before, after, strict=True):
            differences[block.name] = differences[block.name].join(compare(saved_before, saved_after))
        counted(2 * sum(block.nbytes for block in batch))
    return differences


def _tied(
    before: Mapping[str, TensorForm],
    after: Mapping[str, TensorForm],
    stored: Sequence[Mapping[non_tensor_state.Path, str]],
) -> dict[str, _StoredNames]:
    """Tensors that are tied to another one in one of the two alone, and so have no name of their own there."""
    tied: dict[str, _StoredNames] = {}
    for path in stored[0].keys() & stored[1].keys():
        names = _StoredNames(stored[0][path], stored[1][path])
        if names.before == names.after:
            continue
        for name, forms in zip(names, (before, after), strict=True):
            if name not in forms:
                raise CheckpointError(f"{clean(non_tensor_state.spelled(path))} is in no shard, under {clean(name)!r}")
        name = names.after if names.after not in before else names.before
        tied[name] = names
    return tied


def _forms(rows: Rows) -> dict[str, TensorForm]:
    """In the order of their names."""
    specs = {name: rows[name][0].spec for name in sorted(rows)}
    return {name: TensorForm(spec.dtype, tuple(spec.full_shape)) for name, spec in specs.items()}


def _batches(rows: Rows, common: Mapping[str, _StoredNames], forms: Mapping[str, TensorForm]) -> Iterator[list[_Block]]:
    """All of these tensors, in the order in which they lie in the first checkpoint."""
    batch: list[_Block] = []
    size = 0
    for name, names in sorted(common.items(), key=lambda item: _place_of(rows[item[1].before])):
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


def _place_of(pieces: Sequence[Piece]) -> tuple[int, int]:
    return pieces[0].shard, pieces[0].begin


def _read(attempt: reshard.Attempt, rows: Rows, batch: list[_Block], side: int) -> list[torch.Tensor]:
    requests = SliceRequests(rows)
    tensors = [torch.empty(block.shape, dtype=TYPES[block.dtype], device="cpu") for block in batch]
    for block, tensor in zip(batch, tensors, strict=True):
        requests.add(TensorSlice(block.names[side], block.offsets, block.shape), tensor)
    whole_tensors.fill(attempt, requests)
    return tensors


def _values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values besides tensors, by their paths; a list of plain values is one of them."""
    values: dict[str, Any] = {}
    todo = [(str(key), value) for key, value in tree.items() if key not in _NOT_STATE]
    characters = 0
    while todo:
        path, value = todo.pop()
        inside = len(value) if isinstance(value, (dict, list)) else 0
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


def text_of(value: Any, most: int = 40) -> str:
    """A value in one short line, for people."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
