"""The order that a loader takes by itself: a shuffled one whose blocks that are read side by side lie all over.

The data is cut into as many equal stretches as there are lanes, and each lane reads a block of another stretch. So a
batch has samples of as many places as a uniform shuffle of twice the blocks would give it. Which stretch a lane has is
drawn anew for each group of blocks, and in which order the blocks of a stretch come for each epoch. `order_of` makes
one with the block that fits a data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers, invert, mix_key, mix_keys, permute
from hyperpod_kit.data.order.order import EpochFacts, ShuffledOrder

LANES = 384
"""Divided by 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192 and 384 ranks."""

_OF_STRETCH, _OF_GROUP = 2, 3
"""Which keys are made for what; ShuffledOrder has 1 for the samples of a block."""


@dataclass(frozen=True)
class SpreadOrder(ShuffledOrder):
    """A `ShuffledOrder` in which the blocks that are read side by side come from equal stretches all over the data.

    A batch has samples of as many places as a uniform shuffle of twice the blocks would give it. `order_of` makes one
    with the block that fits a data set, and a loader without `order` takes that.

    Attributes:
        samples: How many samples an epoch has.
        seed: Another seed gives another order. Default: 0.
        block: How many neighbouring samples are read together. Default: 1024.
        lanes: Into how many stretches the data is cut; a block of each is read side by side. Default: 384, which 1, 2,
            3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192 and 384 ranks divide.

    Example:
        With a `dataset`:

            from hyperpod_kit.data import ElasticLoader, SpreadOrder

            loader = ElasticLoader(dataset, batch_size=4, order=SpreadOrder(len(dataset), seed=1, block=16))
    """

    lanes: int = LANES

    def described(self) -> dict[str, Any]:
        """Describe the order: two with equal descriptions have the same sample at each position.

        Returns:
            Names and values, for JSON.
        """
        return {**super().described(), "order": "spread"}

    def _blocks_at(self, epoch: EpochFacts, groups: Numbers, lanes: Numbers) -> Numbers:
        full_groups, rest = divmod(epoch.blocks, self.lanes)
        keys = mix_keys(mix_key(epoch.key, _OF_GROUP), groups)
        last = groups == full_groups
        stretches = np.empty_like(lanes)
        stretches[~last] = permute(lanes[~last], self.lanes, keys[~last])
        if last.any():
            # The last group has blocks of those stretches alone that have one more than the others.
            stretches[last] = self._stretches_with_one_block_more(epoch.blocks)[permute(lanes[last], rest, keys[last])]
        return self._blocks_of_stretches(epoch.key, epoch.blocks, stretches, groups)

    def _blocks_of_stretches(self, key: int, blocks: int, stretches: Numbers, groups: Numbers) -> Numbers:
        """Compute the blocks that groups have of stretches."""
        begins = stretches * blocks // self.lanes
        counts = (stretches + 1) * blocks // self.lanes - begins
        keys = mix_keys(mix_key(key, _OF_STRETCH), stretches)
        inside = np.empty_like(groups)
        longer = counts > blocks // self.lanes
        for size, here in ((blocks // self.lanes, ~longer), (blocks // self.lanes + 1, longer)):
            inside[here] = permute(groups[here], size, keys[here])
        blocks_of_groups: Numbers = begins + inside
        return blocks_of_groups

    def _stretches_with_one_block_more(self, blocks: int) -> Numbers:
        """Compute the stretches that have one block more."""
        begins = np.arange(self.lanes + 1) * blocks // self.lanes
        return np.flatnonzero(np.diff(begins) > blocks // self.lanes)

    def _group_and_lane_of_last_block(self, key: int, blocks: int) -> tuple[int, int]:
        full_groups, rest = divmod(blocks, self.lanes)
        stretch = self.lanes - 1
        count = blocks - stretch * blocks // self.lanes
        of_stretch = mix_keys(mix_key(key, _OF_STRETCH), np.array([stretch]))
        group = invert(np.array([count - 1]), count, of_stretch)
        among, size = stretch, self.lanes
        if group[0] == full_groups:
            among, size = rest - 1, rest  # it is the last of the longer ones
        lane = invert(np.array([among]), size, mix_keys(mix_key(key, _OF_GROUP), group))
        return int(group[0]), int(lane[0])
