"""The blocks that are read side by side in a shuffled order, with the order of each one's samples worked out once for
as long as they are read: sample by sample it would cost more than reading them does."""

from __future__ import annotations

import numpy as np

from hyperpod_kit.data.bijection import Numbers, Words, permutations
from hyperpod_kit.data.distinct import distinct

LARGEST = 1 << 20
"""Samples of a group beyond which no table is kept."""
_LANES_AT_A_TIME = 8
"""What is worked out together should stay in the processor's cache."""


class BlockGroup:
    """A lane each: the first sample of its block, how many samples it has, and the key of their order."""

    def __init__(self, firsts: Numbers, counts: Numbers, keys: Words) -> None:
        self._firsts = firsts
        self._counts = counts
        self._keys = keys
        self._order = np.empty((len(firsts), int(counts.max())), np.int32)
        self._known = np.zeros(len(firsts), bool)

    def at(self, lanes: Numbers, offsets: Numbers) -> Numbers:
        """The sample at each (lane, offset). Only lanes that are asked for are worked out: a rank has its own."""
        wanted = np.zeros(len(self._known), bool)
        wanted[lanes] = True
        missing = np.flatnonzero(wanted & ~self._known)
        for size in distinct(self._counts[missing]).tolist():
            lanes_of_size = missing[self._counts[missing] == size]
            for begin in range(0, len(lanes_of_size), _LANES_AT_A_TIME):
                some = lanes_of_size[begin : begin + _LANES_AT_A_TIME]
                self._order[some, :size] = permutations(size, self._keys[some])
        self._known[missing] = True
        found: Numbers = self._firsts[lanes] + self._order[lanes, offsets]
        return found
