"""A mix has the shares in every stretch, each of its data sets every sample once in each of its own epochs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hyperpod_kit.data import (
    ElasticLoader,
    IndexedDataset,
    MixDataset,
    MixOrder,
    PackedDataset,
    SequentialOrder,
    ShuffledOrder,
)
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import CheckpointError


@pytest.mark.parametrize(
    "parts, samples",
    [([(50, 1.0)], 700), ([(50, 0.5), (77, 3.0)], 1000), ([(30, 0.01), (400, 10.0), (33, 1.0)], 300)],
)
def test_no_prefix_is_off_by_a_sample(parts, samples):
    orders = [ShuffledOrder(size, seed, block=16, lanes=4) for seed, (size, _) in enumerate(parts)]
    mix = MixOrder(orders, [share for _, share in parts], samples=samples, seed=3)
    found = np.concatenate([mix.at(epoch, np.arange(samples)) for epoch in range(-(-2000 // samples))])
    bounds = np.cumsum([0, *(size for size, _ in parts)])
    which = np.searchsorted(bounds, found, side="right") - 1
    for number, share in enumerate(mix.shares):
        assert share == pytest.approx(parts[number][1] / sum(one for _, one in parts))
        drawn = np.cumsum(which == number)
        assert np.abs(drawn - share * np.arange(1, len(which) + 1)).max() < 1


@pytest.mark.parametrize(
    "shares", [[0.9999, 0.0001], [0.99999, 0.00001], [0.9, *[0.1 / 599] * 599], [0.9, *[0.1 / 1199] * 1199]]
)
def test_small_shares_and_many_sets_are_what_was_asked_for(shares):
    sizes = [1000] * len(shares)
    found = MixOrder([SequentialOrder(size) for size in sizes], shares, samples=200_000).at(0, np.arange(200_000))
    counts = np.bincount(found // 1000, minlength=len(shares))
    assert np.abs(counts - np.array(shares) * 200_000).max() < 1 + 200_000 * 2.0**-42


def test_epochs_of_a_part_come_one_after_another():
    """Each sample of a set once, then each again: also in time, not only counted up to some place."""
    mix = MixOrder([ShuffledOrder(50, 1), ShuffledOrder(77, 2)], [1, 3], samples=1000)
    found = np.concatenate([mix.at(epoch, np.arange(1000)) for epoch in range(4)])
    for first, size in ((0, 50), (50, 77)):
        mine = found[(found >= first) & (found < first + size)]
        for begin in range(0, len(mine) - size, size):
            assert sorted(mine[begin : begin + size].tolist()) == list(range(first, first + size))
    assert mine[:77].tolist() != mine[77:154].tolist()


def test_the_same_set_twice_is_warned_of(tmp_path, caplog):
    caplog.set_level("WARNING", "hyperpod_kit.data")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    index = build_index([str(tmp_path / "a.txt")], str(tmp_path / "index")).index
    MixDataset({"a": IndexedDataset(index), "b": ["one", "two"]})
    assert not caplog.records
    MixDataset({"a": IndexedDataset(index), "b": IndexedDataset(index)})
    assert "'a' and 'b' of the mix are the same data" in caplog.text
    several = ["x"]
    MixDataset({"c": several, "d": several})
    assert "'c' and 'd'" in caplog.text


def test_a_long_description_is_a_digest():
    """It is written into each checkpoint, and into each rank's ledger."""
    few, many = (MixOrder([ShuffledOrder(9)] * count, [1] * count, samples=9).described() for count in (2, 900))
    assert len(repr(few)) < 2000 and len(repr(many)) < 200
    other = MixOrder([ShuffledOrder(9)] * 900, [1] * 899 + [2], samples=9)
    assert other.described() != many


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
        data = MixDataset({"a": IndexedDataset(build_index([str(tmp_path / "a.txt")], str(tmp_path / text[:3])).index)})
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
    for shares in ([0], [1, 1], []):
        with pytest.raises(ValueError, match="one share above 0"):
            MixOrder([ShuffledOrder(3)], shares, samples=5)
