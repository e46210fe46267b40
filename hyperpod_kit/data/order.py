"""The order in which an epoch's samples come: a function of seed, epoch and position, with nothing kept.

Samples that lie together are a *block*. Blocks are permuted; so many of them as there are *lanes* are read side by
side, one sample of each in turn, and each block's own samples are permuted too. So neighbours of the order are from
many blocks, reads stay inside a few blocks, and with a number of ranks that divides the lanes each block is read by one
rank. Neither ranks, workers nor the size of a batch is part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hyperpod_kit.data.bijection import Numbers, mixed, mixed_each, permuted, restored

LANES = 48
"""Divided by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks."""


class SampleOrder(Protocol):
    """What a loader asks of an order."""

    @property
    def samples(self) -> int:
        """Of one epoch."""

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """The samples at these positions (0 <= position < samples) of an epoch."""

    def described(self) -> dict[str, Any]:
        """What must be equal for a position to mean the same samples."""


@dataclass(frozen=True)
class SequentialOrder:
    """Sample n at position n, in every epoch."""

    samples: int

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        return positions

    def described(self) -> dict[str, Any]:
        return {"order": "sequential", "samples": self.samples}


@dataclass(frozen=True)
class ShuffledOrder:
    """Another order in each epoch, from `seed`. `block`: samples that are read together."""

    samples: int
    seed: int = 0
    block: int = 1024
    lanes: int = LANES

    def __post_init__(self) -> None:
        if self.samples < 1 or self.block < 1 or self.lanes < 1:
            raise ValueError(f"samples={self.samples}, block={self.block}, lanes={self.lanes}: each must be at least 1")

    def described(self) -> dict[str, Any]:
        return {
            "order": "shuffled",
            "samples": self.samples,
            "seed": self.seed,
            "block": self.block,
            "lanes": self.lanes,
        }

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        size, lanes = self.block, self.lanes
        blocks = -(-self.samples // size)
        rest = self.samples - (blocks - 1) * size  # samples of the last block, 1 … size
        key = mixed(self.seed, epoch)
        # Only the last block may be short, so all positions are plain arithmetic but for those of its group.
        at_slot = int(restored(np.array([blocks - 1]), blocks, key)[0])
        its_group, its_lane = divmod(at_slot, lanes)
        its_width = min(lanes, blocks - its_group * lanes)
        missing = size - rest
        full = lanes * size
        its_end = its_group * full + its_width * size - missing

        shifted = positions + np.where(positions >= its_end, missing, 0)
        group = shifted // full
        inside = shifted - group * full
        width = np.minimum(lanes, blocks - group * lanes)
        late = (group == its_group) & (inside >= rest * its_width)  # where the short block has no samples any more
        beyond = inside - rest * its_width
        narrow = np.maximum(width - 1, 1)
        lane_late = beyond % narrow
        lane = np.where(late, lane_late + (lane_late >= its_lane), inside % width)
        offset = np.where(late, rest + beyond // narrow, inside // width)

        block = permuted(group * lanes + lane, blocks, key)
        keys = mixed_each(mixed(key, 1), block)
        found = np.empty_like(offset)
        short = block == blocks - 1
        found[~short] = permuted(offset[~short], size, keys[~short])
        found[short] = permuted(offset[short], rest, keys[short])
        return block * size + found
