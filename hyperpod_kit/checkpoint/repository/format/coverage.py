"""Whether the pieces of a checkpoint make up its tensors: every item of every tensor exactly once.

Checked before a commit, so that a piece which a rank forgot can never be committed.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.format.index import Index
from hyperpod_kit.checkpoint.repository.format.rows import TableRows
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.format.shard_table import ShardTable
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import counted

Box = Tuple[Tuple[int, int], ...]
"""[begin, end) in each dimension."""


def require_full_coverage(index: Index) -> None:
    """Raise CheckpointError unless every item of every tensor is covered exactly once; it names the first tensor
    that is not, and where."""
    checked: Set[Tuple[int, str]] = set()
    for piece in index.pieces:
        if (piece.shard, piece.spec.name) in checked:
            raise CheckpointError(f"tensor {piece.spec.name} is twice in shard {piece.shard}")
        checked.add((piece.shard, piece.spec.name))
    for name, pieces in index.tensors().items():
        problem = _coverage_problem([(piece.shard, piece.spec) for piece in pieces])
        if problem:
            raise CheckpointError(f"tensor {name}: {problem}")


def table_rows_requiring_full_coverage(shards: Sequence[ShardTable]) -> TableRows:
    """Return the rows of the shards' tables. Raise CheckpointError unless they cover every item of every tensor
    exactly once. Tensors that are cut alike are checked once."""
    names: Dict[int, Set[str]] = {}
    for number, table in enumerate(shards):
        if id(table.pattern) not in names:
            names[id(table.pattern)] = set(table.pattern.names)
        divided = names[id(table.pattern)]
        undivided = [spec.name for _, spec in table.undivided]
        if (
            len(divided) < len(table.pattern.names)
            or divided.intersection(undivided)
            or len(set(undivided)) < len(undivided)
        ):
            twice = [name for name, times in Counter([*table.pattern.names, *undivided]).items() if times > 1]
            raise CheckpointError(f"tensor {twice[0]} is twice in shard {number}")
    rows = TableRows(shards)
    alike = [
        next((name for name in group if name not in rows.undivided), "")
        for group in rows.tensor_names_by_cut().values()
    ]
    for name in [*rows.undivided, *alike]:
        problem = ""
        if name:
            problem = _coverage_problem(rows.specs_by_shard(name))
        if problem:
            raise CheckpointError(f"tensor {name}: {problem}")
    return rows


def _coverage_problem(specs: Sequence[Tuple[int, TensorSpec]]) -> str:
    """Return what is wrong with the coverage of one tensor, "" if nothing. `specs`: (shard, the piece that it
    has); of each of thousands of ranks there are some, so the loops are plain."""
    (first_shard, first), full_shape = specs[0], specs[0][1].full_shape
    if len(specs) == 1 and not first.full and not first.offsets:
        return ""
    boxes: List[Box] = []
    covered = 0
    for shard, spec in specs:
        if spec.dtype != first.dtype or spec.full_shape != full_shape:
            this_text, first_text = (
                f"{tensor_spec.dtype} {list(tensor_spec.full_shape)}" for tensor_spec in (spec, first)
            )
            return f"shard {shard} has {this_text}, shard {first_shard} has {first_text}"
        offsets = spec.offsets or (0,) * len(spec.shape)
        if len(spec.shape) != len(full_shape) or len(offsets) != len(full_shape):
            return f"shard {shard} has a piece of {counted(len(spec.shape), 'dimension')} of {len(full_shape)}"
        box = []
        count = 1
        outside = False
        for begin, extent, most in zip(offsets, spec.shape, full_shape):
            box.append((begin, begin + extent))
            outside = outside or begin + extent > most
            count *= extent
        if outside:
            return f"shard {shard} has {_format_box(tuple(box))}, which is outside of {list(full_shape)}"
        covered += count
        boxes += [tuple(box)] if count else []
    items = volume(tuple((0, extent) for extent in full_shape))
    if not items:
        if len(specs) == 1:
            return ""
        return f"it is empty and in {len(specs)} shards"
    missing = items - covered
    overlap = _describe_overlap(boxes, 0)
    if overlap:
        return overlap
    return f"no shard has {counted(missing, 'item')} of {list(full_shape)}" if missing else ""


def volume(box: Box) -> int:
    """Return the number of items in a box; 1 for a tensor without dimensions."""
    count = 1
    for begin, end in box:
        count *= end - begin
    return count


def _describe_overlap(boxes: Sequence[Box], dim: int) -> str:
    """Two boxes that share an item, in words; "" when there are none.

    Boxes of a sharded tensor form a grid, where all extents in a dimension are equal or apart: then each dimension
    takes one sort. Anything else is compared pair by pair, among those that meet in this dimension.
    """
    if len(boxes) < 2:
        return ""
    if dim == len(boxes[0]):
        return f"{_format_box(boxes[0])} is in {len(boxes)} shards"
    groups: Dict[Tuple[int, int], List[Box]] = {}
    for box in boxes:
        groups.setdefault(box[dim], []).append(box)
    extents = sorted(groups)
    if all(before[1] <= after[0] for before, after in zip(extents, extents[1:])):
        return next((overlap for extent in extents if (overlap := _describe_overlap(groups[extent], dim + 1))), "")
    return _describe_pairwise_overlap(sorted(boxes, key=lambda box: box[dim]), dim)


def _describe_pairwise_overlap(sorted_boxes: Sequence[Box], dim: int) -> str:
    """Describe two boxes that overlap, comparing pair by pair; "" when none do. `sorted_boxes` are in order of
    where they begin in `dim`."""
    active: List[Box] = []
    for box in sorted_boxes:
        active = [other for other in active if other[dim][1] > box[dim][0]]
        for other in active:
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(box, other)):
                return f"{_format_box(box)} and {_format_box(other)} overlap"
        active.append(box)
    return ""


def _format_box(box: Box) -> str:
    return "[" + ", ".join(f"{begin}:{end}" for begin, end in box) + "]"
