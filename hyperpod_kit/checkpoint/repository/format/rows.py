"""Tensor -> where its pieces lie, and which of them may hold part of a box, without looking at all of them."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from operator import itemgetter
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import compact_index, index
from hyperpod_kit.checkpoint.repository.format.index import Piece
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec
from hyperpod_kit.checkpoint.repository.format.shard_table import (
    Box,
    BoxCounts,
    ShardPattern,
    ShardTable,
    TensorOffsets,
    build_table,
    encode_table_without_pattern,
)

Extents = Tuple[int, ...]


class Rows(Mapping[str, Sequence[Piece]]):
    """All pieces of each tensor."""

    @abstractmethod
    def find_overlap_candidates(self, name: str, offsets: Extents, shape: Extents) -> Sequence[Piece]:
        """Return the pieces that may overlap that box of the tensor: all that do, and perhaps others."""


def encode_index_file(by_shard: Mapping[int, Sequence[Placed]]) -> bytes:
    """Return the bytes of index.bin of shards whose layouts are known: by tables, or piece by piece where a
    shard's tensors have gaps."""
    tables = [build_table(by_shard[number]) for number in sorted(by_shard)]
    without_gaps = [table for table in tables if table is not None]
    if len(without_gaps) < len(tables):
        return index.encode(index.build(by_shard))
    return compact_index.encode(
        [
            (table.pattern.to_json_bytes().decode(), encode_table_without_pattern(table).decode())
            for table in without_gaps
        ]
    )


def decode_index_file(data: bytes) -> Rows:
    """Decode index.bin, of either version. Raise CheckpointError unless every byte is as it was written."""
    if data[: len(compact_index.MAGIC)] == compact_index.MAGIC:
        return TableRows(compact_index.decode(data))
    return PieceRows(index.decode(data).tensors())


class _SortedBoxes:
    """Boxes in order along the dimension in which they are cut most."""

    def __init__(self, boxes: Sequence[Tuple[Extents, Extents]]) -> None:
        dims = 0
        if boxes:
            dims = len(boxes[0][0])
        same = all(len(offsets) == len(shape) == dims for offsets, shape in boxes)
        if same:
            cuts = [len({offsets[dim] for offsets, _ in boxes}) for dim in range(dims)]
        else:
            cuts = []
        self.dim: Optional[int] = cuts.index(max(cuts)) if cuts and max(cuts) > 1 else None
        self.order = list(range(len(boxes)))
        if self.dim is not None:
            dim = self.dim
            self.order.sort(key=lambda number: boxes[number][0][dim])
            self._begins = [boxes[number][0][dim] for number in self.order]
            self._widest = max(shape[dim] for _, shape in boxes)

    def find_overlap_candidates(self, offsets: Extents, shape: Extents) -> List[int]:
        """Return the numbers of the boxes that may overlap that box."""
        if self.dim is None or len(offsets) <= self.dim:
            return self.order
        low = bisect_left(self._begins, offsets[self.dim] - self._widest + 1)
        return self.order[low : bisect_left(self._begins, offsets[self.dim] + shape[self.dim])]


def _box_of(spec: TensorSpec) -> Tuple[Extents, Extents]:
    return (spec.offsets or (0,) * len(spec.shape), spec.shape)


class PieceRows(Rows):
    """Of an index that names every piece."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._pieces = pieces
        self._lines: Dict[str, _SortedBoxes] = {}

    def __getitem__(self, name: str) -> Sequence[Piece]:
        return self._pieces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def find_overlap_candidates(self, name: str, offsets: Extents, shape: Extents) -> Sequence[Piece]:
        pieces = self._pieces.get(name, ())
        if name not in self._lines:
            self._lines[name] = _SortedBoxes([_box_of(piece.spec) for piece in pieces])
        return [pieces[number] for number in self._lines[name].find_overlap_candidates(offsets, shape)]


class TableRows(Rows):
    """Of a table a shard: a piece is made when it is asked for."""

    def __init__(self, shards: Sequence[ShardTable]) -> None:
        self._shards = shards
        self._patterns: List[ShardPattern] = []
        self._number_of: Dict[int, int] = {}
        numbers: Dict[ShardPattern, int] = {}
        for table in shards:  # equal patterns may be several objects; thousands of names are not hashed for each shard
            if id(table.pattern) not in self._number_of:
                number = numbers.setdefault(table.pattern, len(self._patterns))
                self._number_of[id(table.pattern)] = number
                if number == len(self._patterns):
                    self._patterns.append(table.pattern)
        self._members: List[List[int]] = [[] for _ in self._patterns]
        for shard, table in enumerate(shards):
            self._members[self._number_of[id(table.pattern)]].append(shard)
        self._counts = [BoxCounts(pattern) for pattern in self._patterns]
        # Name -> [(pattern, place in it)], name -> [(shard, number among its whole tensors)].
        self._divided: Dict[str, List[Tuple[int, int]]] = {}
        for number, pattern in enumerate(self._patterns):
            for position, name in enumerate(pattern.names):
                self._divided.setdefault(name, []).append((number, position))
        self._undivided: Dict[str, List[Tuple[int, int]]] = {}
        for shard, table in enumerate(shards):
            for position, (_, spec) in enumerate(table.undivided):
                self._undivided.setdefault(spec.name, []).append((shard, position))
        self._names = list(dict.fromkeys([*self._divided, *self._undivided]))
        self._lines: Dict[Tuple[int, int], _SortedBoxes] = {}
        self._offsets: Dict[int, TensorOffsets] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Sequence[Piece]:
        if name not in self._divided and name not in self._undivided:
            raise KeyError(name)
        pieces = [
            self._piece(name, shard, pattern, position)
            for pattern, position in self._divided.get(name, ())
            for shard in self._members[pattern]
        ]
        return sorted(pieces + self._undivided_pieces(name), key=lambda piece: (piece.shard, piece.begin))

    def specs_by_shard(self, name: str) -> List[Tuple[int, TensorSpec]]:
        """Return (shard, spec of the piece that it has) of a tensor, by shard: as `[name]`, without where it begins
        there."""
        listed = [
            (shard, TensorSpec(name, *self._shards[shard].boxes[self._patterns[pattern].kinds[position]]))
            for pattern, position in self._divided.get(name, ())
            for shard in self._members[pattern]
        ]
        listed += [
            (shard, self._shards[shard].undivided[position][1]) for shard, position in self._undivided.get(name, ())
        ]
        return sorted(listed, key=itemgetter(0))

    def find_overlap_candidates(self, name: str, offsets: Extents, shape: Extents) -> Sequence[Piece]:
        pieces = []
        for pattern, position in self._divided.get(name, ()):
            members = self._members[pattern]
            line = self._cached_sorted_boxes(pattern, self._patterns[pattern].kinds[position])
            pieces += [
                self._piece(name, members[member], pattern, position)
                for member in line.find_overlap_candidates(offsets, shape)
            ]
        return pieces + self._undivided_pieces(name)

    def tensor_names_by_cut(self) -> Dict[Tuple[Tuple[int, int], ...], List[str]]:
        """Return the names of divided tensors that are cut alike on all ranks, by (pattern, box) of each pattern
        that has them."""
        groups: Dict[Tuple[Tuple[int, int], ...], List[str]] = {}
        for name, where in self._divided.items():
            cut = tuple((pattern, self._patterns[pattern].kinds[position]) for pattern, position in where)
            groups.setdefault(cut, []).append(name)
        return groups

    @property
    def undivided(self) -> Mapping[str, Sequence[Tuple[int, int]]]:
        """Tensors that lie whole in a shard: (shard, number among its whole ones)."""
        return self._undivided

    def _cached_sorted_boxes(self, pattern: int, kind: int) -> _SortedBoxes:
        if (pattern, kind) not in self._lines:
            boxes: List[Box] = [self._shards[shard].boxes[kind] for shard in self._members[pattern]]
            self._lines[pattern, kind] = _SortedBoxes([(offsets, shape) for _, shape, offsets, _ in boxes])
        return self._lines[pattern, kind]

    def _offsets_in(self, shard: int) -> TensorOffsets:
        if shard not in self._offsets:
            self._offsets[shard] = self._shards[shard].offsets()
        return self._offsets[shard]

    def _piece(self, name: str, shard: int, pattern: int, position: int) -> Piece:
        table = self._shards[shard]
        spec = TensorSpec(name, *table.boxes[table.pattern.kinds[position]])
        return Piece(spec, shard, self._offsets_in(shard).offset_of_divided(position, self._counts[pattern][position]))

    def _undivided_pieces(self, name: str) -> List[Piece]:
        pieces = []
        for shard, position in self._undivided.get(name, ()):
            table = self._shards[shard]
            counts = self._counts[self._number_of[id(table.pattern)]]
            pieces.append(
                Piece(
                    table.undivided[position][1], shard, self._offsets_in(shard).offset_of_undivided(position, counts)
                )
            )
        return pieces
