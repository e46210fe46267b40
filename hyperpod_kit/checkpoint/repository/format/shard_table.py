"""What is in a shard, said so that most of it is alike in all shards: a pattern, and where this shard's boxes begin.

Ranks among which tensors are divided hold the same names in the same order, and many tensors are cut alike: a model of
2,000 tensors has a handful of boxes on each rank. So a shard is a *pattern* (names, and for each the number of its
box), the *boxes* themselves, and the whole tensors that lie between, each by its place. Where the bytes of each begin
is not said: tensors lie in a shard without gaps (see shard.lay_out).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec, parse_spec
from hyperpod_kit.untrusted import parse

Box = Tuple[str, Tuple[int, ...], Tuple[int, ...], Tuple[int, ...]]
"""Type, shape, offsets, shape of the whole tensor, as in TensorSpec."""

_KEPT_COUNTS = 1 << 22
_MOST_COUNTS = 1 << 28
"""Names of a pattern times its boxes: as many numbers are multiplied to say where everything lies in one shard."""


class ShardPattern(NamedTuple):
    """Divided tensors in the order of the file, the number of each one's box, and how many boxes there are."""

    names: Tuple[str, ...]
    kinds: Tuple[int, ...]
    cuts: int

    def to_json_bytes(self) -> bytes:
        return json.dumps([list(self.names), list(self.kinds)], separators=(",", ":")).encode()


class ShardTable(NamedTuple):
    """All tensors of one shard. `undivided`: (place among all of the shard, tensor), ascending; `base`: where the first
    tensor begins, in bytes of the file."""

    pattern: ShardPattern
    boxes: Tuple[Box, ...]
    undivided: Tuple[Tuple[int, TensorSpec], ...]
    base: int

    def offsets(self) -> TensorOffsets:
        return TensorOffsets(self)


class TensorOffsets:
    """Where each tensor of a shard begins: what lies before it is counted and not walked."""

    def __init__(self, table: ShardTable) -> None:
        self._base = table.base
        self._sizes = [TensorSpec("", *box).nbytes for box in table.boxes]
        self._sums = [0, *accumulate(spec.nbytes for _, spec in table.undivided)]
        self._before = [position - number for number, (position, _) in enumerate(table.undivided)]

    def offset_of_divided(self, number: int, counts: Sequence[int]) -> int:
        """Return where the pattern's `number`th tensor begins, before which `counts` of each box are (see
        `BoxCounts`)."""
        undivided_bytes = self._sums[bisect_right(self._before, number)]
        return self._base + undivided_bytes + sum(map(int.__mul__, counts, self._sizes))

    def offset_of_undivided(self, number: int, counts: BoxCounts) -> int:
        """Return where the shard's `number`th whole tensor begins; `counts` of all places of the pattern."""
        counts_before = counts[self._before[number]]
        return self._base + self._sums[number] + sum(map(int.__mul__, counts_before, self._sizes))


class BoxCounts:
    """For each tensor of a pattern, and for its end: how many tensors of each box come before. Where there are many of
    both, the counts of some are kept and those between are counted anew."""

    def __init__(self, pattern: ShardPattern) -> None:
        self._kinds = pattern.kinds
        self._step = 1 + len(pattern.kinds) * pattern.cuts // _KEPT_COUNTS
        counts = [0] * pattern.cuts
        self._kept = [tuple(counts)]
        for number, kind in enumerate(pattern.kinds, start=1):
            counts[kind] += 1
            if number % self._step == 0:
                self._kept.append(tuple(counts))

    def __getitem__(self, number: int) -> Sequence[int]:
        kept, behind = divmod(number, self._step)
        if not behind:
            return self._kept[kept]
        counts = list(self._kept[kept])
        for kind in self._kinds[number - behind : number]:
            counts[kind] += 1
        return counts


def build_table(pieces: Sequence[Placed]) -> Optional[ShardTable]:
    """The table of a shard; None where its tensors do not lie one behind the other, or nearly all are cut otherwise."""
    names: List[str] = []
    kinds: List[int] = []
    boxes: Dict[Box, int] = {}
    undivided: List[Tuple[int, TensorSpec]] = []
    at = base = pieces[0].begin if pieces else 0
    for position, (spec, begin, end) in enumerate(pieces):
        if begin != at or end - begin != spec.nbytes:
            return None
        at = end
        if spec.full:
            names.append(spec.name)
            kinds.append(boxes.setdefault(spec[1:], len(boxes)))
        else:
            undivided.append((position, spec))
    if len(names) * len(boxes) > _MOST_COUNTS:
        return None
    return ShardTable(ShardPattern(tuple(names), tuple(kinds), len(boxes)), tuple(boxes), tuple(undivided), base)


def place_tensors(table: ShardTable) -> Tuple[Placed, ...]:
    """Return each tensor with its byte range: undo `build_table`."""
    names, kinds, _ = table.pattern
    divided = iter(TensorSpec(name, *table.boxes[kind]) for name, kind in zip(names, kinds))
    undivided = dict(table.undivided)
    placed = []
    at = table.base
    for position in range(len(names) + len(undivided)):
        if position in undivided:
            spec = undivided[position]
        else:
            spec = next(divided)
        placed.append(Placed(spec, at, at + spec.nbytes))
        at += spec.nbytes
    return tuple(placed)


def encode_table_without_pattern(table: ShardTable) -> bytes:
    """Encode all of a table but its pattern, as JSON."""
    undivided = [[position, spec.name, spec.dtype, list(spec.shape)] for position, spec in table.undivided]
    return json.dumps([table.base, [list(box) for box in table.boxes], undivided], separators=(",", ":")).encode()


def parse_pattern(text: bytes) -> ShardPattern:
    """Undo `ShardPattern.to_json_bytes`. Raise ValueError."""
    return decode_pattern(parse.parse_json(text, len(text)))


def decode_pattern(body: Any) -> ShardPattern:
    """Build a pattern from parsed JSON. Raise ValueError."""
    names, kinds = _require_list(body, 2)
    if not isinstance(names, list) or not isinstance(kinds, list) or len(names) != len(kinds):
        raise ValueError("a pattern has as many boxes as names")
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ValueError("a pattern has each name once")
    if not all(type(kind) is int and 0 <= kind < len(kinds) for kind in kinds):
        raise ValueError("a pattern numbers its boxes")
    cuts = max(kinds, default=-1) + 1
    if cuts * len(names) > _MOST_COUNTS:
        raise ValueError(f"a pattern has {len(names)} names in {cuts} boxes")
    return ShardPattern(tuple(names), tuple(kinds), cuts)


def parse_table(pattern: ShardPattern, text: bytes) -> ShardTable:
    """Return the table of a pattern and of what `encode_table_without_pattern` wrote. Raise ValueError,
    TypeError."""
    return decode_table(pattern, parse.parse_json(text, len(text)))


def decode_table(pattern: ShardPattern, body: Any) -> ShardTable:
    """Build the table of a pattern from parsed JSON. Raise ValueError, TypeError."""
    base, boxes, undivided = _require_list(body, 3)
    parsed_boxes: List[Box] = []
    for box in _require_list(boxes):
        spec = parse_spec("", *_require_list(box, 4))
        if not spec.full:
            raise ValueError("a box is part of no tensor")
        parsed_boxes.append((spec.dtype, spec.shape, spec.offsets, spec.full))
    if pattern.cuts > len(parsed_boxes):
        raise ValueError("a shard lacks a box of its pattern")
    rows: List[Tuple[int, TensorSpec]] = []
    before = -1
    for row in _require_list(undivided):
        position, name, dtype, shape = _require_list(row, 4)
        if type(position) is not int or not before < position < len(pattern.names) + len(_require_list(undivided)):
            raise ValueError(f"a tensor has the place {str(position)[:40]} in its shard")
        rows.append((position, parse_spec(name, dtype, shape, (), ())))
        before = position
    if type(base) is not int or not 0 <= base < 1 << 62:
        raise ValueError(f"a shard's tensors begin at {str(base)[:40]}")
    return ShardTable(pattern, tuple(parsed_boxes), tuple(rows), base)


def _require_list(value: Any, count: Optional[int] = None) -> List[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"{str(value)[:40]} is not a list{f' of {count}' if count is not None else ''}")
    return value
