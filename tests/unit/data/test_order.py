"""The order of an epoch is a permutation, whatever the sizes; neighbours are of many blocks, ranks keep to theirs."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod_kit.data.numbers import bijection
from hyperpod_kit.data.order.order import ShuffledOrder
from tests.support.examples import examples


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_key_permutes_and_its_inverse_restores(size, key):
    every = np.arange(size)
    found = bijection.permute(every, size, key)
    assert sorted(found.tolist()) == every.tolist()
    assert (bijection.invert(found, size, key) == every).all()


@examples(50)
@given(st.integers(1, 3000), st.integers(1, 97), st.integers(1, 20), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_every_sample_once(samples, block, lanes, seed, epoch):
    order = ShuffledOrder(samples, seed, block, lanes)
    found = order.at(epoch, np.arange(samples))
    assert sorted(found.tolist()) == list(range(samples))


@given(st.data())
def test_a_place_does_not_depend_on_what_else_is_asked(data):
    samples = data.draw(st.integers(1, 2000))
    order = ShuffledOrder(samples, 3, data.draw(st.integers(1, 50)), data.draw(st.integers(1, 9)))
    places = np.array(data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=20)))
    assert (order.at(1, places) == order.at(1, np.arange(samples))[places]).all()


@given(st.integers(1, 3000), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_whole_ranges_are_permuted_alike(size, keys):
    found = bijection.permutations(size, np.array(keys, np.uint64))
    for row, key in zip(found, keys, strict=True):
        assert (row == bijection.permute(np.arange(size), size, key)).all()


def test_the_order_is_the_one_that_positions_in_checkpoints_mean():
    found = ShuffledOrder(200_003, 7, 513).at(2, np.arange(200_003)).astype("<i8")
    assert hashlib.blake2b(found.tobytes(), digest_size=8).hexdigest() == "70e4d6f2211a9d64"


@settings(max_examples=8)
@given(st.integers(4000, 60_000), st.integers(1, 900), st.integers(1, 60), st.integers(1, 7))
def test_neighbours_and_single_places_agree(samples, block, lanes, ranks):
    order = ShuffledOrder(samples, 1, block, lanes)
    places = np.arange(0, samples, ranks)
    found = order.at(0, places)
    for n in range(0, len(places), 1 + len(places) // 8):
        assert order.at(0, places[n : n + 1])[0] == found[n]


def test_a_million_and_three_samples():
    order = ShuffledOrder(1_000_003, 7)
    found = order.at(0, np.arange(1_000_003))
    assert np.bincount(found, minlength=1_000_003).max() == 1 == np.bincount(found).min()


def test_epochs_and_seeds_differ():
    every = np.arange(10_000)
    orders = [
        ShuffledOrder(10_000, seed, 64).at(epoch, every).tobytes() for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert len(set(orders)) == 4


def test_neighbours_are_of_as_many_blocks_as_there_are_lanes():
    order = ShuffledOrder(48 * 256 * 4, 0, block=256, lanes=48)
    for begin in range(0, order.samples, 48 * 100):
        blocks = order.at(0, np.arange(begin, begin + 48)) // 256
        assert len(set(blocks.tolist())) == 48


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12])
def test_each_block_is_read_by_one_rank(ranks):
    order = ShuffledOrder(48 * 64 * 3, 0, block=64, lanes=48)
    of_rank = [set((order.at(0, np.arange(rank, order.samples, ranks)) // 64).tolist()) for rank in range(ranks)]
    assert sum(map(len, of_rank)) == 48 * 3


def test_samples_of_a_block_are_not_in_their_own_order():
    order = ShuffledOrder(64 * 64, 0, block=64, lanes=1)
    found = order.at(0, np.arange(64))
    assert len(set((found // 64).tolist())) == 1 and np.diff(found).tolist() != [1] * 63


def test_what_cannot_be_is_refused():
    for wrong in ({"samples": 0}, {"samples": 5, "block": 0}, {"samples": 5, "lanes": 0}):
        with pytest.raises(ValueError, match="each must be at least 1"):
            ShuffledOrder(**wrong)
