"""An epoch in sections whose samples' weights are known in all before any of them is put in order: to find a place by
weight, such as by the tokens before it, one section is worked out and not the epoch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.numbers.bijection import Numbers


class WeightBuckets(NamedTuple):
    """For each section of an epoch the positions, and the weight, up to its end: i64, neither falls."""

    positions: Numbers
    weights: Numbers


@runtime_checkable
class WeighedOrder(Protocol):
    """An order whose sections have known samples, whatever their order inside a section."""

    def weighed(self, epoch: int, weights: npt.NDArray[np.uint32]) -> WeightBuckets:
        """Sum weights by sections of an epoch.

        Args:
            epoch: The epoch, from 0.
            weights: The weight of each sample, by its number.

        Returns:
            For each section the positions, and the weight, up to its end.
        """


def cumulate_weights_by_section(order: Any, epoch: int, weights: npt.NDArray[np.uint32]) -> WeightBuckets:
    """Sum weights by sections of an epoch; an order without sections has one, the whole epoch."""
    if isinstance(order, WeighedOrder):
        return order.weighed(epoch, weights)
    return WeightBuckets(np.array([order.samples]), np.array([weights.sum(dtype=np.int64)]))
