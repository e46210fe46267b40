"""A mix has exactly the shares, each of its data sets every sample once in each of its own epochs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset, MixDataset, MixOrder, PackedDataset, ShuffledOrder
from hyperpod_kit.data.index.build import build
from hyperpod_kit.data.mix import ROUND
from hyperpod_kit.errors import CheckpointError


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


def test_windows_over_several_epochs_are_each_parts_own():
    """Windows are numbered over all epochs: none of a part is taken for one of another."""
    parts = {}
    for name, first in (("a", 0), ("b", 1000)):
        documents = [np.arange(first, first + 1 + n) for n in range(20)]
        lengths = np.array([len(one) for one in documents], np.uint32)
        order = ShuffledOrder(20, seed=first, block=4, lanes=2)
        parts[name] = PackedDataset(Documents(documents), None, lengths, window=7, order=order)
    orders = [one.windows for one in parts.values()]
    mixed = MixOrder(orders, [1, 3], samples=1000)
    received = [one for batch in ElasticLoader(MixDataset(parts), 10, order=mixed, collate_fn=list) for one in batch]
    for name, share in (("a", 250), ("b", 750)):
        mine = [tuple(one.tolist()) for one in received if (one[0] >= 1000) == (name == "b")]
        wanted = [tuple(parts[name][number].tolist()) for number in range(share)]
        assert Counter(mine) == Counter(wanted)


def test_a_position_in_a_mix_of_other_data_is_refused(tmp_path):
    states = []
    for text in ("one\ntwo\n", "ONE\nTWO\n"):
        (tmp_path / "a.txt").write_text(text)
        data = MixDataset({"a": IndexedDataset(build([str(tmp_path / "a.txt")], str(tmp_path / text[:3])).index)})
        loader = ElasticLoader(data, 1, order=MixOrder([ShuffledOrder(2)], [1], samples=10))
        states.append(loader.state_dict())
    loader.load_state_dict(states[1])
    with pytest.raises(CheckpointError, match="data: "):
        loader.load_state_dict(states[0])


class Documents(list):  # type: ignore[type-arg]
    index: Any = None

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def test_shares_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="one share above 0"):
        MixOrder([ShuffledOrder(3)], [0], samples=5)
