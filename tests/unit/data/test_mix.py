"""A mix has exactly the shares, each of its data sets every sample once in each of its own epochs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, MixDataset, MixOrder, ShuffledOrder
from hyperpod_kit.data.mix import ROUND


@pytest.mark.parametrize(
    "parts, samples",
    [([(50, 1.0)], 700), ([(50, 0.5), (77, 3.0)], 1000), ([(30, 0.01), (400, 10.0), (33, 1.0)], 300)],
)
def test_shares_are_exact_in_each_round(parts, samples):
    orders = [ShuffledOrder(size, seed, block=16, lanes=4) for seed, (size, _) in enumerate(parts)]
    mix = MixOrder(orders, [share for _, share in parts], samples=samples, seed=3)
    epochs = -(-2 * ROUND // samples)
    found = np.concatenate([mix.at(epoch, np.arange(samples)) for epoch in range(epochs)])
    bounds = np.cumsum([0, *(size for size, _ in parts)])
    which = np.searchsorted(bounds, found, side="right") - 1
    for begin in (0, ROUND):
        counts = Counter(which[begin : begin + ROUND].tolist())
        assert [counts[n] for n in range(len(parts))] == mix.counts
    for number, (_, share) in enumerate(parts):
        wanted = share / sum(one for _, one in parts) * ROUND
        assert abs(mix.counts[number] - wanted) <= len(parts)


def test_epochs_of_a_part_have_every_sample_once_in_a_row():
    """Inside a round the places of a part come in another order, so it is counted up to whole rounds."""
    mix = MixOrder([ShuffledOrder(50, 1), ShuffledOrder(77, 2)], [1, 3], samples=10_000)
    found = mix.at(0, np.arange(10_000))
    mine = Counter(found[found < 50].tolist())
    assert set(mine.values()) == {2500 // 50}


def test_in_the_loader():
    data = MixDataset({"a": [f"a{n}" for n in range(20)], "b": [f"b{n}" for n in range(30)]})
    order = MixOrder([ShuffledOrder(20), ShuffledOrder(30)], [0.25, 0.75], samples=1000)
    found = Counter(one[0] for batch in ElasticLoader(data, 10, order=order, collate_fn=list) for one in batch)
    assert found == {"a": 250, "b": 750}


def test_shares_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="one share above 0"):
        MixOrder([ShuffledOrder(3)], [0], samples=5)
