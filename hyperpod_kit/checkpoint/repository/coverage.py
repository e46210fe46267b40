"""Whether the pieces of a checkpoint make up its tensors: every item of every tensor exactly once.

Checked before a commit, so that a piece which a rank forgot can never be committed.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.index import Index, Piece
from hyperpod_kit.checkpoint.repository.rows import TableRows
from hyperpod_kit.checkpoint.repository.shard_table import ShardTable
from hyperpod_kit.errors import CheckpointError

Box = Tuple[Tuple[int, int], ...]
"""[begin, end) in each dimension."""


def check(index: Index) -> None:
    """Raises CheckpointError that names the first tensor which is not covered exactly once, and where."""
    seen: Set[Tuple[int, str]] = set()
    for piece in index.pieces:
        if (piece.shard, piece.spec.name) in seen:
            raise CheckpointError(f"tensor {piece.spec.name} is twice in shard {piece.shard}")
        seen.add((piece.shard, piece.spec.name))
    for name, pieces in index.tensors().items():
        problem = _problem(pieces)
        if problem:
            raise CheckpointError(f"tensor {name}: {problem}")


def check_tables(shards: Sequence[ShardTable]) -> TableRows:
    """The same of shards' tables; where everything lies. Tensors that are cut alike are looked at once."""
    names: Dict[int, Set[str]] = {}
    for number, table in enumerate(shards):
        if id(table.pattern) not in names:
            names[id(table.pattern)] = set(table.pattern.names)
        divided = names[id(table.pattern)]
        whole = [spec.name for _, spec in table.whole]
        if len(divided) < len(table.pattern.names) or divided.intersection(whole) or len(set(whole)) < len(whole):
            twice = [name for name, times in Counter([*table.pattern.names, *whole]).items() if times > 1]
            raise CheckpointError(f"tensor {twice[0]} is twice in shard {number}")
    rows = TableRows(shards)
    alike = [next((name for name in found if name not in rows.whole), "") for found in rows.alike().values()]
    for name in [*rows.whole, *alike]:
        problem = _problem(rows[name]) if name else ""
        if problem:
            raise CheckpointError(f"tensor {name}: {problem}")
    return rows


def _problem(pieces: Sequence[Piece]) -> str:
    first = pieces[0].spec
    boxes: List[Box] = []
    for piece in pieces:
        spec = piece.spec
        if (spec.dtype, spec.whole) != (first.dtype, first.whole):
            return (
                f"shard {piece.shard} has {spec.dtype} {list(spec.whole)}, "
                f"shard {pieces[0].shard} has {first.dtype} {list(first.whole)}"
            )
        offsets = spec.offsets or (0,) * len(spec.shape)
        if len(spec.shape) != len(spec.whole) or len(offsets) != len(spec.whole):
            return f"shard {piece.shard} has a piece of {len(spec.shape)} dimensions of {len(spec.whole)}"
        box = tuple((begin, begin + extent) for begin, extent in zip(offsets, spec.shape))
        if any(end > extent for (_, end), extent in zip(box, spec.whole)):
            return f"shard {piece.shard} has {_text(box)}, which is outside of {list(spec.whole)}"
        boxes.append(box)
    items = volume(tuple((0, extent) for extent in first.whole))
    if not items:
        return "" if len(boxes) == 1 else f"it is empty and in {len(boxes)} shards"
    boxes = [box for box in boxes if volume(box)]
    missing = items - sum(volume(box) for box in boxes)
    overlap = _overlap(boxes, 0)
    if overlap:
        return overlap
    return f"{missing} items of {list(first.whole)} are in no shard" if missing else ""


def volume(box: Box) -> int:
    """How many items; 1 for a tensor without dimensions."""
    count = 1
    for begin, end in box:
        count *= end - begin
    return count


def _overlap(boxes: Sequence[Box], dim: int) -> str:
    """Two boxes that share an item, in words; "" when there are none.

    Boxes of a sharded tensor form a grid, where all extents in a dimension are equal or apart: then each dimension
    takes one sort. Anything else is compared pair by pair, among those that meet in this dimension.
    """
    if len(boxes) < 2:
        return ""
    if dim == len(boxes[0]):
        return f"{_text(boxes[0])} is in {len(boxes)} shards"
    groups: Dict[Tuple[int, int], List[Box]] = {}
    for box in boxes:
        groups.setdefault(box[dim], []).append(box)
    extents = sorted(groups)
    if all(before[1] <= after[0] for before, after in zip(extents, extents[1:])):
        return next((found for extent in extents if (found := _overlap(groups[extent], dim + 1))), "")
    return _overlap_of_pairs(sorted(boxes, key=lambda box: box[dim]), dim)


def _overlap_of_pairs(boxes: Sequence[Box], dim: int) -> str:
    """`boxes` in order of where they begin in `dim`."""
    active: List[Box] = []
    for box in boxes:
        active = [other for other in active if other[dim][1] > box[dim][0]]
        for other in active:
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(box, other)):
                return f"{_text(box)} and {_text(other)} overlap"
        active.append(box)
    return ""


def _text(box: Box) -> str:
    return "[" + ", ".join(f"{begin}:{end}" for begin, end in box) + "]"
