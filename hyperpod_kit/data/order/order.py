"""The order in which an epoch's samples come: a function of seed, epoch and position, with nothing kept.

Samples that lie together are a *block*. Blocks are permuted; so many of them as there are *lanes* are read side by
side, one sample of each in turn, and each block's own samples are permuted too. So neighbours of the order are from
many blocks, reads stay inside a few blocks, and with a number of ranks that divides the lanes each block is read by one
rank. Neither ranks, workers nor the size of a batch is part of it.

`ElasticLoader(order=...)` and `PackedDataset(order=...)` take an order; `order_of` chooses one that fits a data set.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.numbers.bijection import Numbers, invert, mix_key, mix_keys, permute
from hyperpod_kit.data.order.block_group import MAX_TABLE_SAMPLES, BlockGroup
from hyperpod_kit.data.order.buckets import WeightBuckets

LANES = 48
"""Divided by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks."""

_MIN_NEIGHBOURS = 64
"""Places of one group, asked for together, for which its blocks' orders are worked out."""
_MIN_FIRST_NEIGHBOURS = 1024
"""As many, when they are the first that are asked for: a first batch should not wait for the orders of whole blocks."""
_MAX_GROUPS = 2


class SampleOrder(Protocol):
    """What a loader needs of an order; a class of your own with these members is one."""

    @property
    def samples(self) -> int:
        """How many samples an epoch has."""

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """Look up samples by their positions in an epoch.

        Args:
            epoch: The epoch, from 0.
            positions: Positions in it: 0 <= position < samples.

        Returns:
            The numbers of the samples.
        """

    def described(self) -> dict[str, Any]:
        """Describe the order: what must be equal for a position to mean the same samples.

        Returns:
            Names and values, for JSON.
        """


@dataclass(frozen=True)
class SequentialOrder:
    """Sample n at position n, in every epoch.

    Attributes:
        samples: How many samples an epoch has.

    Example:
        With a `dataset`:

            from hyperpod_kit.data import ElasticLoader, SequentialOrder

            loader = ElasticLoader(dataset, batch_size=4, order=SequentialOrder(len(dataset)))
    """

    samples: int

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """Look up samples by their positions in an epoch.

        Args:
            epoch: The epoch, from 0.
            positions: Positions in it: 0 <= position < samples.

        Returns:
            The numbers of the samples.
        """
        return positions

    def described(self) -> dict[str, Any]:
        """Describe the order: two with equal descriptions have the same sample at each position.

        Returns:
            Names and values, for JSON.
        """
        return {"order": "sequential", "samples": self.samples}


@dataclass(frozen=True)
class EpochFacts:
    """Where the last block, which alone may be short, comes in an epoch; all else is plain arithmetic."""

    key: int
    blocks: int
    rest: int
    """Samples of the last block, 1 … block."""
    missing: int
    group: int
    lane: int
    end: int
    """Positions before the group behind its own."""


class _OrderCache:
    """The blocks computed last. Another process computes its own."""

    def __init__(self) -> None:
        self.epoch: tuple[int, EpochFacts] | None = None
        self.groups: dict[tuple[int, int], BlockGroup] = {}
        self.has_been_asked = False

    def __reduce__(self) -> tuple[type[_OrderCache], tuple[()]]:
        return _OrderCache, ()


@dataclass(frozen=True)
class ShuffledOrder:
    """Another order in each epoch, from a seed, in which blocks of neighbouring samples are read side by side.

    ValueError is raised unless `samples`, `block` and `lanes` are 1 at least.

    Attributes:
        samples: How many samples an epoch has.
        seed: Another seed gives another order. Default: 0.
        block: How many neighbouring samples are read together. Default: 1024.
        lanes: How many blocks are read side by side, one sample of each in turn. Default: 48, which 1, 2, 3, 4, 6, 8,
            12, 16, 24 and 48 ranks divide, so that each block is read by one rank.

    Example:
        With an `index` and a `dataset` of it:

            from hyperpod_kit.data import ElasticLoader, ShuffledOrder

            order = ShuffledOrder(len(dataset), seed=1, block=index.block_for(1 << 18), lanes=96)
            loader = ElasticLoader(dataset, batch_size=4, order=order)
    """

    samples: int
    seed: int = 0
    block: int = 1024
    lanes: int = LANES
    _kept: _OrderCache = field(default_factory=_OrderCache, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1 or self.block < 1 or self.lanes < 1:
            raise ValueError(f"samples={self.samples}, block={self.block}, lanes={self.lanes}: each must be at least 1")

    def described(self) -> dict[str, Any]:
        """Describe the order: two with equal descriptions have the same sample at each position.

        Returns:
            Names and values, for JSON.
        """
        return {
            "order": "shuffled",
            "samples": self.samples,
            "seed": self.seed,
            "block": self.block,
            "lanes": self.lanes,
        }

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """Look up samples by their positions in an epoch.

        Args:
            epoch: The epoch, from 0.
            positions: Positions in it: 0 <= position < samples.

        Returns:
            The numbers of the samples.
        """
        epoch_facts = self._cached_block_layout_of_epoch(epoch)
        shifted = positions + np.where(positions >= epoch_facts.end, epoch_facts.missing, 0)
        groups = shifted // (self.lanes * self.block)
        steps = np.diff(groups)
        begins = [0, *(np.flatnonzero(steps) + 1).tolist(), len(positions)]
        few = _MIN_FIRST_NEIGHBOURS
        if self._kept.has_been_asked:
            few = _MIN_NEIGHBOURS * (len(begins) - 1)
        self._kept.has_been_asked = True
        if len(positions) < few or self.lanes * self.block > MAX_TABLE_SAMPLES:
            return self._compute_samples_without_block_tables(epoch_facts, shifted, groups)
        samples = np.empty_like(positions)
        for begin, end in itertools.pairwise(begins):
            lanes, offsets = self._lanes_and_offsets(epoch_facts, shifted[begin:end], groups[begin:end])
            samples[begin:end] = self._cached_block_group(epoch, int(groups[begin])).samples_at(lanes, offsets)
        return samples

    def weighed(self, epoch: int, weights: npt.NDArray[np.uint32]) -> WeightBuckets:
        """Sum weights by sections of an epoch: a section is a group of blocks that are read side by side.

        Args:
            epoch: The epoch, from 0.
            weights: The weight of each sample, by its number.

        Returns:
            For each section the positions, and the weight, up to its end.
        """
        epoch_facts = self._cached_block_layout_of_epoch(epoch)
        of_blocks = np.add.reduceat(weights, np.arange(0, self.samples, self.block), dtype=np.int64)
        in_order = of_blocks[self._blocks_at(epoch_facts, *np.divmod(np.arange(epoch_facts.blocks), self.lanes))]
        begins = np.arange(0, epoch_facts.blocks, self.lanes)
        ends = np.minimum(begins + self.lanes, epoch_facts.blocks) * self.block
        ends[epoch_facts.group :] -= epoch_facts.missing
        return WeightBuckets(ends, np.cumsum(np.add.reduceat(in_order, begins)))

    def _blocks_at(self, epoch: EpochFacts, groups: Numbers, lanes: Numbers) -> Numbers:
        """Compute the blocks at (group, lane)."""
        return permute(groups * self.lanes + lanes, epoch.blocks, epoch.key)

    def _group_and_lane_of_last_block(self, key: int, blocks: int) -> tuple[int, int]:
        """Compute (group, lane) of the last block."""
        return divmod(int(invert(np.array([blocks - 1]), blocks, key)[0]), self.lanes)

    def _cached_block_layout_of_epoch(self, number: int) -> EpochFacts:
        if self._kept.epoch is None or self._kept.epoch[0] != number:
            blocks = -(-self.samples // self.block)
            rest = self.samples - (blocks - 1) * self.block
            key = mix_key(self.seed, number)
            group, lane = self._group_and_lane_of_last_block(key, blocks)
            width = min(self.lanes, blocks - group * self.lanes)
            missing = self.block - rest
            end = (group * self.lanes + width) * self.block - missing
            self._kept.epoch = number, EpochFacts(key, blocks, rest, missing, group, lane, end)
        return self._kept.epoch[1]

    def _lanes_and_offsets(
        self, epoch: EpochFacts, shifted_positions: Numbers, groups: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Compute (lane, offset in its block) of places in these groups."""
        inside = shifted_positions - groups * (self.lanes * self.block)
        width = np.minimum(self.lanes, epoch.blocks - groups * self.lanes)
        offsets, lanes = np.divmod(inside, width)
        # Where the short block has no samples any more, the other lanes of its group go on.
        late = np.flatnonzero((groups == epoch.group) & (offsets >= epoch.rest))
        if late.size:
            beyond, narrow = inside[late] - epoch.rest * width[late], np.maximum(width[late] - 1, 1)
            further, lane = np.divmod(beyond, narrow)
            offsets[late] = epoch.rest + further
            lanes[late] = lane + (lane >= epoch.lane)
        return lanes, offsets

    def _compute_samples_without_block_tables(
        self, epoch: EpochFacts, shifted_positions: Numbers, groups: Numbers
    ) -> Numbers:
        """Compute the samples at places that are far from each other."""
        lanes, offsets = self._lanes_and_offsets(epoch, shifted_positions, groups)
        block = self._blocks_at(epoch, groups, lanes)
        keys = mix_keys(mix_key(epoch.key, 1), block)
        permuted_offsets = np.empty_like(offsets)
        short = block == epoch.blocks - 1
        permuted_offsets[~short] = permute(offsets[~short], self.block, keys[~short])
        permuted_offsets[short] = permute(offsets[short], epoch.rest, keys[short])
        return block * self.block + permuted_offsets

    def _cached_block_group(self, epoch_number: int, group: int) -> BlockGroup:
        """Return the blocks that are read side by side, kept while they are read."""
        block_group = self._kept.groups.get((epoch_number, group))
        if block_group is None:
            epoch = self._cached_block_layout_of_epoch(epoch_number)
            lanes = np.arange(min(self.lanes, epoch.blocks - group * self.lanes))
            blocks = self._blocks_at(epoch, np.full_like(lanes, group), lanes)
            counts = np.where(blocks == epoch.blocks - 1, epoch.rest, self.block)
            block_group = BlockGroup(blocks * self.block, counts, mix_keys(mix_key(epoch.key, 1), blocks))
            kept = [*self._kept.groups.items(), ((epoch_number, group), block_group)]
            self._kept.groups.clear()
            self._kept.groups.update(kept[-_MAX_GROUPS:])
        return block_group
