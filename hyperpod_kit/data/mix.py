"""Several data sets in one, each with its share: which one is next follows from the position alone, and each goes
through its own epochs, every sample once in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hyperpod_kit.data.bijection import Numbers, mixed, permuted
from hyperpod_kit.data.distinct import distinct
from hyperpod_kit.data.order import SampleOrder

ROUND = 1000
"""Places of a round. In each round every data set has exactly its share, in an order of its own."""


class MixOrder:
    """Samples of several orders by their shares. An epoch of the mix is `samples` long, and orders go on over its end.

    The numbers are those of a MixDataset: each data set's begin where the ones before it end. Windows, which are
    numbered over all epochs, go on behind the last of them, in turn.
    """

    def __init__(self, orders: Sequence[SampleOrder], shares: Sequence[float], *, samples: int, seed: int = 0) -> None:
        if len(orders) != len(shares) or not orders or min(shares) <= 0:
            raise ValueError(f"{len(orders)} orders and the shares {list(shares)}: one share above 0 for each")
        self.samples = samples
        self._orders = tuple(orders)
        self._seed = seed
        self.counts = _counts(shares)
        *self._firsts, self._total = np.cumsum([0, *(order.samples for order in orders)]).tolist()

    def described(self) -> dict[str, Any]:
        """See SampleOrder."""
        parts = [sorted((name, value) for name, value in order.described().items()) for order in self._orders]
        return {"order": "mix", "samples": self.samples, "mix": repr((parts, self.counts, self._seed))}

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """See SampleOrder."""
        overall = positions + epoch * self.samples
        rounds, places = overall // ROUND, overall % ROUND
        # Every round has its own order of the same places; a permuted place below the first bound is the first one's.
        every = distinct(rounds)
        keys = np.array([mixed(self._seed, one) for one in every.tolist()], np.uint64)
        drawn = permuted(places, ROUND, keys[np.searchsorted(every, rounds)])
        bounds = np.cumsum(self.counts)
        which = np.searchsorted(bounds, drawn, side="right")
        found = np.empty_like(positions)
        for number, order in enumerate(self._orders):
            mine = which == number
            begin = int(bounds[number]) - self.counts[number]
            place = rounds[mine] * self.counts[number] + (drawn[mine] - begin)
            epochs = place // order.samples
            inside = np.empty_like(place)
            for one in distinct(epochs).tolist():
                here = epochs == one
                inside[here] = order.at(one, place[here] % order.samples)
            later = (inside - order.samples) * len(self._orders) + number + self._total
            found[mine] = np.where(inside < order.samples, inside + self._firsts[number], later)
        return found


def _counts(shares: Sequence[float]) -> list[int]:
    """Places of each in a round: the largest remainders are rounded up, and none has no place at all."""
    exact = [share / sum(shares) * ROUND for share in shares]
    counts = [max(1, int(one)) for one in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: int(exact[n]) - exact[n])
    for n in by_rest[: max(0, ROUND - sum(counts))]:
        counts[n] += 1
    counts[counts.index(max(counts))] += ROUND - sum(counts)
    return counts


class MixDataset:
    """Several data sets, by numbers that go through all of them."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = dict(datasets)
        self._firsts = np.cumsum([0, *(len(one) for one in self.datasets.values())])

    @property
    def decodes(self) -> bool:
        """See IndexedDataset."""
        return all(getattr(one, "decodes", False) for one in self.datasets.values())

    @property
    def digest(self) -> str:
        """What says which data this is, of all of them; "" for those that do not say it."""
        return " ".join(f"{name}:{data_digest(one)}" for name, one in self.datasets.items())

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several samples, in the order asked for."""
        asked = np.asarray(numbers, dtype=np.int64)
        later, turn = np.divmod(asked - len(self), len(self.datasets))
        which = np.where(asked < len(self), np.searchsorted(self._firsts, asked, side="right") - 1, turn)
        asked = np.where(asked < len(self), asked, self._firsts[which + 1] + later)
        found: list[Any] = [None] * len(asked)
        for number, dataset in enumerate(self.datasets.values()):
            mine = np.flatnonzero(which == number)
            inside = (asked[mine] - self._firsts[number]).tolist()
            several = getattr(dataset, "__getitems__", None)
            samples = several(inside) if several else [dataset[one] for one in inside]
            for place, sample in zip(mine.tolist(), samples, strict=True):
                found[place] = sample
        return found


def data_digest(dataset: Any) -> str:
    """What says which data a data set has: of an index its digest, "" where nothing does."""
    if isinstance(dataset, MixDataset):
        return dataset.digest
    return str(getattr(getattr(dataset, "index", None), "data", ""))
