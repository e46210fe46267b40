"""Which samples are read together, by the blocks of an order: what is read at once begins and ends where they do, so
that no byte of another block comes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.index.layout import IndexedFile
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.order.default_order import BLOCK_BYTES, choose_shuffled_order
from hyperpod_kit.data.reading.coalesced_reads import PIECE_NUMBER_BITS
from hyperpod_kit.data.reading.source_files import MEMORY_BYTES, FileFacts

PIECE_BYTES = 512 << 10
"""Bytes that a piece of a block has at most in the mean: a larger block is read in several."""
_MAX_PIECE_BYTES = 2 << 20
"""Bytes of a piece beyond which its samples are read by themselves: among short ones there is a very long one."""
_RANGE_FORMATS = {"lines", "tar", "whole"}


class PlacedSamples(Protocol):
    """An index, as far as it says where samples lie."""

    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int: ...
    @property
    def firsts(self) -> Numbers:
        """Return the number of each file's first sample."""

    def places(self, samples: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return (start, length) of samples, in bytes of their files."""


class PieceSteps(NamedTuple):
    block: int
    parts: int
    step: int
    """Samples of a part."""


class BlockCuts:
    """The pieces of an index's files. A piece is a block, or a part of one, as far as it lies in one file."""

    def __init__(self, index: PlacedSamples) -> None:
        self._index = index
        self._requested_block = 0
        self._cached_steps: PieceSteps | None = None

    def set_samples_per_block(self, block: int) -> None:
        """Read blocks of `block` samples together from now on; before, the default order's."""
        self._requested_block, self._cached_steps = block, None

    @property
    def _samples_per_block_and_piece(self) -> PieceSteps:
        if self._cached_steps is None:
            block = self._requested_block or choose_shuffled_order(self._index, 0).block
            size = max(1, block * self._index.bytes // max(1, len(self._index)))
            block *= max(1, BLOCK_BYTES // size)  # of little data the blocks are small
            parts = min(block, -(-size // PIECE_BYTES))
            self._cached_steps = PieceSteps(block, parts, -(-block // parts))
        return self._cached_steps

    def piece_keys(self, samples: Numbers, files: Numbers) -> Numbers:
        """Number the piece of each sample; the number says its file too."""
        block, parts, step = self._samples_per_block_and_piece
        blocks, inside = np.divmod(samples, block)
        keys: Numbers = (files << PIECE_NUMBER_BITS) | (blocks * parts + inside // step)
        return keys

    def piece_start_offsets(self, samples: Numbers, files: Numbers) -> Numbers:
        """Locate where in its file the piece of each sample begins."""
        block, _, step = self._samples_per_block_and_piece
        firsts = samples - samples % block % step
        return self._index.places(np.maximum(firsts, self._index.firsts[files]))[0].astype(np.int64)

    def piece_range_if_ordered_and_small(self, sample: int, file: int) -> tuple[int, int] | None:
        """Locate (begin, end) of a sample's piece in its file; None where it does not pay, or the samples do not lie
        there in their order."""
        block, _, step = self._samples_per_block_and_piece
        of_block = sample % block
        first = sample - of_block % step
        last = min(first + step, sample - of_block + block, len(self._index))
        firsts = self._index.firsts
        first = max(first, int(firsts[file]))
        if file + 1 < len(firsts):
            last = min(last, int(firsts[file + 1]))
        starts, lengths = self._index.places(slice(first, last))
        ends = starts.astype(np.int64) + lengths
        begin, end = int(starts[0]), int(ends[-1])
        if end - begin > _MAX_PIECE_BYTES or int(starts.min()) < begin or int(ends.max()) > end:
            return None
        return begin, end

    def block_start_offsets_if_worth_cutting(self, file: FileFacts) -> Sequence[int]:
        """Locate where blocks begin in an object. Of little data all is kept: there are fewer requests without."""
        if not isinstance(file, IndexedFile) or file.format not in _RANGE_FORMATS or self._index.bytes <= MEMORY_BYTES:
            return ()
        block = self._samples_per_block_and_piece.block
        firsts = np.arange(-(-file.first // block) * block, file.first + file.samples, block)
        begins: list[int] = self._index.places(firsts)[0].tolist()
        return begins
