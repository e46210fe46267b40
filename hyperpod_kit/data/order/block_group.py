"""The blocks that are read side by side in a shuffled order, with the order of each one's samples worked out once for
as long as they are read: sample by sample it would cost more than reading them does."""

from __future__ import annotations

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers, Uint64Array, permutations
from hyperpod_kit.data.numbers.deduplication import unique_values

MAX_TABLE_SAMPLES = 1 << 20
"""Samples of a group beyond which no table is kept."""
_LANES_PER_STEP = 8
"""What is worked out together should stay in the processor's cache."""


class BlockGroup:
    """Blocks of one group, one for each lane: the first sample of its block, how many samples it has, and the key of
    their order."""

    def __init__(self, firsts: Numbers, counts: Numbers, keys: Uint64Array) -> None:
        self._firsts = firsts
        self._counts = counts
        self._keys = keys
        self._order = np.empty((len(firsts), int(counts.max())), np.int32)
        self._computed = np.zeros(len(firsts), bool)

    def samples_at(self, lanes: Numbers, offsets: Numbers) -> Numbers:
        """Look up the sample at each (lane, offset).

        Only lanes that are asked for are worked out: a rank has its own.
        """
        requested = np.zeros(len(self._computed), bool)
        requested[lanes] = True
        missing = np.flatnonzero(requested & ~self._computed)
        for size in unique_values(self._counts[missing]).tolist():
            lanes_of_size = missing[self._counts[missing] == size]
            for begin in range(0, len(lanes_of_size), _LANES_PER_STEP):
                batch = lanes_of_size[begin : begin + _LANES_PER_STEP]
                self._order[batch, :size] = permutations(size, self._keys[batch])
        self._computed[missing] = True
        samples: Numbers = self._firsts[lanes] + self._order[lanes, offsets]
        return samples
