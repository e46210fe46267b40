"""Several data sets in one, each with its share.

Which one is next follows from the position alone, and each goes through its own epochs, every sample once in each of
them.

An epoch of a set is its own: as many of its samples as it has, in an order of that epoch, drawn one after another at
its places in the mix. A set of 777 samples with half of the mix begins its second epoch after 1,554 samples of the mix,
wherever an epoch of the mix ends.

A program makes a `MixDataset` of the data sets and a `MixOrder` of their orders, and gives both to an `ElasticLoader`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.numbers.deduplication import unique_values
from hyperpod_kit.data.order.even_draw import EvenDraw
from hyperpod_kit.data.order.order import SampleOrder

log = logging.getLogger("hyperpod_kit.data")

_MAX_DESCRIPTION = 2000
"""Of a mix's description; a longer one is a digest, as it is written into each checkpoint."""


class MixOrder:
    """Samples of several orders by their shares.

    Each set has its share of every stretch: no prefix has a sample of it too many or too few, and no window two. The
    orders continue over the end of an epoch of the mix.

    The numbers are those of a MixDataset: each data set's begin where the ones before it end. Windows, which are
    numbered over all epochs, continue behind the last of them, in turn.

    Args:
        orders: The order of each data set, of a PackedDataset its `windows`.
        shares: The share of each, any numbers above 0, of which none is less than a millionth of their sum.
        samples: How many samples an epoch of the mix has.
        seed: Which of sets that are equally due comes first. Default: 0.

    Attributes:
        samples: As given.

    Raises:
        ValueError: There is not one share above 0 for each order, or a share is too small.

    Example:
        With two data sets, `code` and `prose`:

            from hyperpod_kit.data import ElasticLoader, MixDataset, MixOrder, order_of

            orders = [order_of(code, seed=1), order_of(prose, seed=1)]
            order = MixOrder(orders, [0.3, 0.7], samples=1000)
            loader = ElasticLoader(MixDataset({"code": code, "prose": prose}), batch_size=4, order=order)
    """

    def __init__(self, orders: Sequence[SampleOrder], shares: Sequence[float], *, samples: int, seed: int = 0) -> None:
        if len(orders) != len(shares):
            raise ValueError(f"{len(orders)} orders and {len(shares)} shares: one share above 0 for each")
        self.samples = samples
        self._orders = tuple(orders)
        self._seed = seed
        self._draw = EvenDraw(shares, seed)
        *self._firsts, self._total = np.cumsum([0, *(order.samples for order in orders)]).tolist()

    @property
    def shares(self) -> list[float]:
        """The share of each set in the whole, as they are drawn."""
        return self._draw.shares

    def described(self) -> dict[str, Any]:
        """Describe the order: two with equal descriptions have the same sample at each position.

        Returns:
            Names and values, for JSON.
        """
        parts = [sorted((name, value) for name, value in order.described().items()) for order in self._orders]
        description = repr((parts, self._draw.weights.tolist(), self._seed))
        if len(description) > _MAX_DESCRIPTION:
            description = hashlib.blake2b(description.encode(), digest_size=16).hexdigest()
        return {"order": "mix", "draw": "even", "samples": self.samples, "mix": description}

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """Look up samples by their positions in an epoch.

        Args:
            epoch: The epoch, from 0.
            positions: Positions in it: 0 <= position < samples.

        Returns:
            The numbers of the samples.
        """
        sets, places = self._draw.sets_and_prior_draws_at(positions + epoch * self.samples)
        by_set = np.argsort(sets, kind="stable")
        samples = np.empty_like(positions)
        for positions_of_set in np.split(by_set, np.flatnonzero(np.diff(sets[by_set])) + 1):
            if len(positions_of_set):
                samples[positions_of_set] = self._samples_of_set(
                    int(sets[positions_of_set[0]]), places[positions_of_set]
                )
        return samples

    def _samples_of_set(self, number: int, places: Numbers) -> Numbers:
        """Compute the mix's numbers of the samples at places of one set, which go on over its epochs."""
        order = self._orders[number]
        epochs = places // order.samples
        inside = np.empty_like(places)
        for epoch in unique_values(epochs).tolist():
            here = epochs == epoch
            inside[here] = order.at(epoch, places[here] % order.samples)
        later = (inside - order.samples) * len(self._orders) + number + self._total
        numbers: Numbers = np.where(inside < order.samples, inside + self._firsts[number], later)
        return numbers


class MixDataset:
    """Several data sets, by numbers that go through all of them.

    The same data under two names is warned about in the log: its samples come by both shares.

    Args:
        datasets: The data sets by their names, in the order of the MixOrder.

    Attributes:
        datasets: As given.

    Example:
        With two data sets, `code` and `prose`:

            from hyperpod_kit.data import MixDataset

            mix = MixDataset({"code": code, "prose": prose})
            assert len(mix) == len(code) + len(prose)
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = dict(datasets)
        self._firsts = np.cumsum([0, *(len(dataset) for dataset in self.datasets.values())])
        for dataset in self.datasets.values():
            if hasattr(dataset, "one_of"):
                dataset.one_of(len(self.datasets))
        _warn_of_duplicate_data(self.datasets)

    @property
    def decodes(self) -> bool:
        """Whether the numbers of all sets are those of records, each of which is good or bad by itself."""
        return all(getattr(dataset, "decodes", False) for dataset in self.datasets.values())

    @property
    def digest(self) -> str:
        """What identifies the data of all sets; the part of a set without a digest is empty."""
        return " ".join(f"{name}:{data_digest_or_empty(dataset)}" for name, dataset in self.datasets.items())

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read several samples.

        Args:
            numbers: Their numbers in the mix.

        Returns:
            The samples, in that order.
        """
        requested = np.asarray(numbers, dtype=np.int64)
        later, turn = np.divmod(requested - len(self), len(self.datasets))
        which = np.where(requested < len(self), np.searchsorted(self._firsts, requested, side="right") - 1, turn)
        requested = np.where(requested < len(self), requested, self._firsts[which + 1] + later)
        samples_in_order: list[Any] = [None] * len(requested)
        for number, dataset in enumerate(self.datasets.values()):
            positions_of_set = np.flatnonzero(which == number)
            inside = (requested[positions_of_set] - self._firsts[number]).tolist()
            several = getattr(dataset, "__getitems__", None)
            samples = several(inside) if several else [dataset[sample_number] for sample_number in inside]
            for position, sample in zip(positions_of_set.tolist(), samples, strict=True):
                samples_in_order[position] = sample
        return samples_in_order


def data_digest_or_empty(dataset: Any) -> str:
    """Identify the data of a data set: by its index's digest, "" where it has none."""
    if isinstance(dataset, MixDataset):
        return dataset.digest
    return str(getattr(getattr(dataset, "index", None), "data", ""))


def _warn_of_duplicate_data(datasets: Mapping[str, Any]) -> None:
    """Warn of one set under two names: it has both shares, and with one seed the same samples come twice in a row."""
    name_of_data: dict[str, str] = {}
    for name, dataset in datasets.items():
        key = data_digest_or_empty(dataset) or str(id(dataset))
        if key in name_of_data:
            log.warning(
                "%r and %r of the mix are the same data, so its samples come with both shares; give their orders "
                "different seeds, or give the data one share, the sum of both",
                name_of_data[key],
                name,
            )
        name_of_data.setdefault(key, name)
