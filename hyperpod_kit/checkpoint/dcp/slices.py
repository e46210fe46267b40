"""Slices of tensors, and the byte ranges of saved pieces that make them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from hyperpod_kit.checkpoint.dtypes import NAMES, TYPES
from hyperpod_kit.checkpoint.load import Landing, copy_into, empty, lands
from hyperpod_kit.checkpoint.repository import index
from hyperpod_kit.checkpoint.repository.boxes import Runs
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.tensors import TensorPiece
from hyperpod_kit.errors import CheckpointError

Chunk = tuple[int, int]
"""Number of the shard, number of the chunk in it."""


class TensorSlice(NamedTuple):
    """Part of a tensor: `offsets` and `shape` in the whole tensor."""

    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Common(NamedTuple):
    """What a slice and a saved piece have in common: at `inside` in the piece, at `at` in the slice.

    Bytes [begin, end) of the file have to be read; `run` says that they are the slice and nothing else.
    """

    row: index.Piece
    inside: tuple[int, ...]
    at: tuple[int, ...]
    extents: tuple[int, ...]
    begin: int
    end: int
    run: bool


def commons(rows: Rows, wanted: TensorSlice) -> Iterator[Common]:
    """Raises CheckpointError unless every element of the slice is in the checkpoint."""
    count, total = 0, _volume(wanted.shape)
    for row in rows.find_near(wanted.name, wanted.offsets, wanted.shape):
        spec = row.spec
        if len(spec.shape) != len(wanted.shape):
            raise CheckpointError(
                f"{wanted.name} has {len(spec.shape)} dimensions in the checkpoint, {len(wanted.shape)} here"
            )
        offsets = spec.offsets or (0,) * len(spec.shape)
        low = tuple(map(max, offsets, wanted.offsets))
        extents = tuple(
            min(a + m, b + n) - c
            for a, m, b, n, c in zip(offsets, spec.shape, wanted.offsets, wanted.shape, low, strict=True)
        )
        if any(extent <= 0 for extent in extents):
            continue
        count += _volume(extents)
        inside = tuple(a - b for a, b in zip(low, offsets, strict=True))
        at = tuple(a - b for a, b in zip(low, wanted.offsets, strict=True))
        runs = Runs(spec.shape, inside, extents, ITEM_BYTES[spec.dtype])
        if runs.count == 1:
            begin = row.begin + runs.begin
            yield Common(row, inside, at, extents, begin, begin + runs.length, True)
        else:
            yield Common(row, inside, at, extents, row.begin, row.begin + spec.nbytes, False)
    if count != total:
        raise CheckpointError(f"{wanted.name}: {count} of {total} elements are in the checkpoint")


def _volume(shape: Iterable[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def needs(rows: Rows, slices: Iterable[TensorSlice], chunk: int) -> list[Chunk]:
    """The chunks of `chunk` bytes that have to be read for these slices. Raises as `commons`."""
    return sorted(
        {
            (common.row.shard, number)
            for one in slices
            for common in commons(rows, one)
            for number in range(common.begin // chunk, -(-common.end // chunk))
        }
    )


class SliceRequests:
    """What one rank wants of an attempt, and where it goes. What is wanted in `common` is wanted by all ranks alike."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.landings: dict[int, Landing] = {}
        self.common: dict[int, Landing] = {}
        self._cuts: list[Callable[[], None]] = []
        self._whole: dict[tuple[int, int, bool], torch.Tensor] = {}

    def add(self, wanted: TensorSlice, target: torch.Tensor, *, common: bool = False) -> None:
        """`target` has the slice's shape; another type is converted. Raises as `commons`."""
        for one in commons(self._rows, wanted):
            part = target
            for dim, (at, extent) in enumerate(zip(one.at, one.extents, strict=True)):
                part = part.narrow(dim, at, extent)
            self._add(one, part, common)

    def add_whole(self, name: str, *, common: bool = False) -> torch.Tensor:
        """All of a tensor, new. Raises CheckpointError when the attempt does not have all of it."""
        rows = self._rows.get(name)
        if not rows:
            raise CheckpointError(f"{name} is in no shard")
        whole = rows[0].spec.full_shape
        made = empty(rows[0].spec._replace(shape=whole))
        self.add(TensorSlice(name, (0,) * len(whole), whole), made, common=common)
        return made

    def _add(self, one: Common, part: torch.Tensor, common: bool) -> None:
        row = one.row
        landing = (self.common if common else self.landings).setdefault(row.shard, Landing())
        if one.run:
            staged = part
            if not lands(part) or part.dtype != TYPES[row.spec.dtype]:
                staged = empty(row.spec._replace(shape=one.extents))
                self._cuts.append(lambda: copy_into(part, staged, row.spec.name))
            landing.add(one.begin, one.end, staged)
            return
        # The slice is no single run of bytes: the whole saved piece is read, once, and cut afterwards.
        whole = self._whole.get((row.shard, row.begin, common))
        if whole is None:
            whole = self._whole[row.shard, row.begin, common] = empty(row.spec)
            landing.add(one.begin, one.end, whole)
        cut = whole
        for dim, (at, extent) in enumerate(zip(one.inside, one.extents, strict=True)):
            cut = cut.narrow(dim, at, extent)
        self._cuts.append(lambda: copy_into(part, cut, row.spec.name))

    def freeze(self, chunk: int) -> tuple[list[Chunk], list[Chunk]]:
        """The chunks that these bytes lie in, and those of what is common; nothing is added after it."""
        for landing in (*self.landings.values(), *self.common.values()):
            landing.freeze()
        return _chunks(self.landings, chunk), _chunks(self.common, chunk)

    def together(self, chunk: int) -> list[Chunk]:
        """What is common is wanted by this rank for itself: the chunks of all of it."""
        for number, landing in self.common.items():
            self.landings.setdefault(number, Landing()).join(landing)
        self.common.clear()
        return self.freeze(chunk)[0]

    def wanted(self, number: int, begin: int, end: int, *, common: bool = False) -> list[tuple[int, int]]:
        """What is wanted of the bytes [begin, end) of a shard, each byte once."""
        landing = (self.common if common else self.landings).get(number)
        return [] if landing is None else landing.wanted(begin, end)

    def take(self, number: int, begin: int, view: memoryview) -> None:
        """Copy what of these bytes of a shard is wanted. Safe for threads."""
        for landings in (self.landings, self.common):
            if number in landings:
                landings[number].take(begin, view)

    @property
    def touched(self) -> bool:
        """Whether memory was written to."""
        return any(landing.touched for landing in (*self.landings.values(), *self.common.values()))

    def complete(self) -> None:
        """All bytes are in: fill what could not be written to directly. Raises TargetFault."""
        for cut in self._cuts:
            cut()
        self._cuts.clear()
        self._whole.clear()


def _chunks(landings: Mapping[int, Landing], chunk: int) -> list[Chunk]:
    return sorted((shard, at) for shard, landing in landings.items() for at in landing.chunks(chunk))


def check_fit(rows: Rows, pieces: Sequence[TensorPiece]) -> None:
    """Types and shapes, before a byte is read. Raises CheckpointError."""
    for piece in pieces:
        check_kind(rows, piece.spec.name, NAMES[piece.tensor.dtype], piece.spec.full_shape)


def check_kind(rows: Rows, name: str, dtype: str, whole: tuple[int, ...]) -> None:
    """Whether a tensor of that type and whole shape can be filled from the one that was saved under its name. Raises
    CheckpointError."""
    for row in rows.get(name, ())[:1]:
        saved = row.spec
        if (saved.dtype, saved.full_shape) != (dtype, whole):
            raise CheckpointError(
                f"{name} is {saved.dtype} {list(saved.full_shape)} in the checkpoint, {dtype} {list(whole)} here"
            )
