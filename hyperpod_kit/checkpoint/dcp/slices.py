"""Slices of tensors, and the byte ranges of saved pieces that make them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from hyperpod_kit.checkpoint.codec.dtypes import NAMES, TYPES
from hyperpod_kit.checkpoint.repository.format import index
from hyperpod_kit.checkpoint.repository.format.boxes import Runs
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.state.tensors import TensorPiece
from hyperpod_kit.checkpoint.transfer.load import Landing, allocate_host_tensor, can_fill_directly, copy_into
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import counted

Chunk = tuple[int, int]
"""Number of the shard, number of the chunk in it."""


class TensorSlice(NamedTuple):
    """Part of a tensor: `offsets` and `shape` in the whole tensor."""

    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class SliceOverlap(NamedTuple):
    """What a slice and a saved piece have in common: at `inside` in the piece, at `at` in the slice.

    Bytes [begin, end) of the file have to be read; `is_contiguous` says that they are the slice and nothing else.
    """

    row: index.Piece
    offset_in_piece: tuple[int, ...]
    offset_in_slice: tuple[int, ...]
    extents: tuple[int, ...]
    begin: int
    end: int
    is_contiguous: bool


def iter_overlaps_requiring_full_coverage(rows: Rows, tensor_slice: TensorSlice) -> Iterator[SliceOverlap]:
    """Yield what a slice has in common with each saved piece. Raises CheckpointError unless every
    element of the slice is in the checkpoint."""
    count, total = 0, _volume(tensor_slice.shape)
    for row in rows.find_overlap_candidates(tensor_slice.name, tensor_slice.offsets, tensor_slice.shape):
        spec = row.spec
        if len(spec.shape) != len(tensor_slice.shape):
            raise CheckpointError(
                f"{tensor_slice.name} has {counted(len(spec.shape), 'dimension')} in the checkpoint, "
                f"{len(tensor_slice.shape)} here"
            )
        offsets = spec.offsets or (0,) * len(spec.shape)
        low = tuple(map(max, offsets, tensor_slice.offsets))
        extents = tuple(
            min(a + m, b + n) - c
            for a, m, b, n, c in zip(offsets, spec.shape, tensor_slice.offsets, tensor_slice.shape, low, strict=True)
        )
        if any(extent <= 0 for extent in extents):
            continue
        count += _volume(extents)
        inside = tuple(a - b for a, b in zip(low, offsets, strict=True))
        at = tuple(a - b for a, b in zip(low, tensor_slice.offsets, strict=True))
        runs = Runs(spec.shape, inside, extents, ITEM_BYTES[spec.dtype])
        if runs.count == 1:
            begin = row.begin + runs.begin
            yield SliceOverlap(row, inside, at, extents, begin, begin + runs.length, True)
        else:
            yield SliceOverlap(row, inside, at, extents, row.begin, row.begin + spec.nbytes, False)
    if count != total:
        raise CheckpointError(f"{tensor_slice.name}: {count} of {total} elements are in the checkpoint")


def _volume(shape: Iterable[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def needed_chunks(rows: Rows, slices: Iterable[TensorSlice], chunk_size: int) -> list[Chunk]:
    """Return the chunks of `chunk_size` bytes that have to be read for these slices. Raises as
    `iter_overlaps_requiring_full_coverage`."""
    return sorted(
        {
            (overlap.row.shard, number)
            for tensor_slice in slices
            for overlap in iter_overlaps_requiring_full_coverage(rows, tensor_slice)
            for number in range(overlap.begin // chunk_size, -(-overlap.end // chunk_size))
        }
    )


class SliceRequests:
    """What one rank wants of an attempt, and where it goes. What is wanted in `common` is wanted by all ranks alike."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.landings: dict[int, Landing] = {}
        self.common: dict[int, Landing] = {}
        self._copies: list[Callable[[], None]] = []
        self._full_pieces: dict[tuple[int, int, bool], torch.Tensor] = {}

    def add(self, tensor_slice: TensorSlice, target: torch.Tensor, *, common: bool = False) -> None:
        """Request a slice into `target`, which has the slice's shape; another type is converted. Raises as
        `iter_overlaps_requiring_full_coverage`."""
        for overlap in iter_overlaps_requiring_full_coverage(self._rows, tensor_slice):
            part = target
            for dim, (at, extent) in enumerate(zip(overlap.offset_in_slice, overlap.extents, strict=True)):
                part = part.narrow(dim, at, extent)
            self._request_overlap(overlap, part, common)

    def request_full_in_new_tensor(self, name: str, *, common: bool = False) -> torch.Tensor:
        """Request a whole tensor into new memory, and return that. Raises CheckpointError when the
        checkpoint does not have all of it."""
        rows = self._rows.get(name)
        if not rows:
            raise CheckpointError(f"{name} is in no shard")
        full_shape = rows[0].spec.full_shape
        target = allocate_host_tensor(rows[0].spec._replace(shape=full_shape))
        self.add(TensorSlice(name, (0,) * len(full_shape), full_shape), target, common=common)
        return target

    def _request_overlap(self, overlap: SliceOverlap, part: torch.Tensor, common: bool) -> None:
        row = overlap.row
        landing = self._common_or_own_landings(common).setdefault(row.shard, Landing())
        if overlap.is_contiguous:
            staged = part
            if not can_fill_directly(part) or part.dtype != TYPES[row.spec.dtype]:
                staged = allocate_host_tensor(row.spec._replace(shape=overlap.extents))
                self._copies.append(lambda: copy_into(part, staged, row.spec.name))
            landing.add(overlap.begin, overlap.end, staged)
            return
        # The slice is no single run of bytes: the whole saved piece is read, once, and cut afterwards.
        piece = self._full_pieces.get((row.shard, row.begin, common))
        if piece is None:
            piece = self._full_pieces[row.shard, row.begin, common] = allocate_host_tensor(row.spec)
            landing.add(overlap.begin, overlap.end, piece)
        cut = piece
        for dim, (at, extent) in enumerate(zip(overlap.offset_in_piece, overlap.extents, strict=True)):
            cut = cut.narrow(dim, at, extent)
        self._copies.append(lambda: copy_into(part, cut, row.spec.name))

    def _common_or_own_landings(self, common: bool) -> dict[int, Landing]:
        """Return the landings of what all ranks want alike, or of this rank's own."""
        if common:
            return self.common
        return self.landings

    def freeze_and_list_own_and_common_chunks(self, chunk_size: int) -> tuple[list[Chunk], list[Chunk]]:
        """End the adding of requests; return the chunks that this rank's own bytes lie in, and those of
        what is common."""
        for landing in (*self.landings.values(), *self.common.values()):
            landing.sort_ranges_and_synchronize_devices()
        return _chunks(self.landings, chunk_size), _chunks(self.common, chunk_size)

    def merge_common_into_own_requests(self, chunk_size: int) -> list[Chunk]:
        """Turn the common requests into requests of this rank alone, and return the chunks of all of them."""
        for number, landing in self.common.items():
            self.landings.setdefault(number, Landing()).add_all_from(landing)
        self.common.clear()
        return self.freeze_and_list_own_and_common_chunks(chunk_size)[0]

    def requested_ranges(
        self, shard_number: int, begin: int, end: int, *, common: bool = False
    ) -> list[tuple[int, int]]:
        """Return the requested ranges within the bytes [begin, end) of a shard, each byte once."""
        landing = self._common_or_own_landings(common).get(shard_number)
        if landing is None:
            return []
        return landing.requested_ranges(begin, end)

    def copy_requested_bytes(self, shard_number: int, begin: int, view: memoryview) -> None:
        """Copy what is requested of these bytes of a shard into its targets. Safe for threads."""
        for landings in (self.landings, self.common):
            if shard_number in landings:
                landings[shard_number].copy_requested_bytes(begin, view)

    @property
    def has_written_targets(self) -> bool:
        """Return whether memory was written to."""
        return any(landing.touched for landing in (*self.landings.values(), *self.common.values()))

    def run_staged_copies(self) -> None:
        """Fill the targets that could not be written to directly, once all bytes are read. Raises
        TargetFault."""
        for cut in self._copies:
            cut()
        self._copies.clear()
        self._full_pieces.clear()


def _chunks(landings: Mapping[int, Landing], chunk_size: int) -> list[Chunk]:
    return sorted((shard, at) for shard, landing in landings.items() for at in landing.chunk_numbers(chunk_size))


def require_saved_type_shape_of_pieces(rows: Rows, pieces: Sequence[TensorPiece]) -> None:
    """Raise CheckpointError where the type or whole shape of a piece is not that of the checkpoint,
    before a byte is read."""
    for piece in pieces:
        require_same_type_and_shape_if_saved(rows, piece.spec.name, NAMES[piece.tensor.dtype], piece.spec.full_shape)


def require_same_type_and_shape_if_saved(rows: Rows, name: str, dtype: str, full_shape: tuple[int, ...]) -> None:
    """Raise CheckpointError unless a tensor of that type and whole shape can be filled from the one
    that was saved under its name."""
    for row in rows.get(name, ())[:1]:
        saved = row.spec
        if (saved.dtype, saved.full_shape) != (dtype, full_shape):
            raise CheckpointError(
                f"{name} is {saved.dtype} {list(saved.full_shape)} in the checkpoint, {dtype} {list(full_shape)} here"
            )
