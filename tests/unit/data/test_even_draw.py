"""A draw by shares: no prefix is off by a sample of any set, wherever it begins to be worked out."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hyperpod_kit.data.order.even_draw import _UNIT, MIN_SHARE, EvenDraw

BLENDS = {
    "one": lambda rng: [2.5],
    "two": lambda rng: [0.9999, 0.0001],
    "least": lambda rng: [1.0, 1.0001e-6],
    "thirds": lambda rng: [1, 1, 1],
    "fives": lambda rng: [6.0 ** -(n // 5) for n in range(25)],
    "random-7": lambda rng: rng.dirichlet([1] * 7),
    "random-50": lambda rng: 10 ** rng.uniform(-4, 0, 50),
    "600": lambda rng: [0.9, *[0.1 / 599] * 599],
    "1200": lambda rng: [0.9, *[0.1 / 1199] * 1199],
    "5000-equal": lambda rng: [1] * 5000,
    "5000-least": lambda rng: [1.0, *[1.01e-6] * 4999],
    "5000": lambda rng: np.maximum(rng.lognormal(0, 2, 5000), 0.05),
}
FAR = (1 << 20) - 3000, 987_654_321, (1 << 44) + 12_345


@pytest.mark.parametrize("name", BLENDS)
def test_no_prefix_is_off_by_a_sample_of_any_set(name):
    shares = [float(one) for one in BLENDS[name](np.random.default_rng(1))]
    draw = EvenDraw(shares, seed=3)
    assert draw.weights.sum() == _UNIT
    assert np.abs(np.array(draw.shares) - np.array(shares) / sum(shares)).max() <= 2.0**-41
    for begin in (0, *FAR):
        assert_even(draw, begin, 30_000)


def assert_even(draw, begin, places):
    """The numbers of draws are those of the prefix: so its distance from the shares is known at each place."""
    sets, before = draw.sets_and_prior_draws_at(np.arange(begin, begin + places))
    place = np.arange(begin, begin + places, dtype=object)
    weight, made = draw.weights[sets].astype(object), before.astype(object)
    early = (made + 1) * _UNIT - (
        place + 1
    ) * weight  # behind a draw its set is furthest ahead, before it furthest back
    late = place * weight - made * _UNIT
    assert max(early) < _UNIT and max(late) < _UNIT
    by_set = np.argsort(sets, kind="stable")
    steps = np.diff(before[by_set])[np.diff(sets[by_set]) == 0]
    assert (steps == 1).all()
    last = sorted(dict(zip(sets.tolist(), before.tolist(), strict=True)).items())
    assert all(abs((made + 1) * _UNIT - (begin + places) * int(draw.weights[one])) < _UNIT for one, made in last)
    if not begin:  # and those that were not drawn yet
        never = np.setdiff1d(np.arange(len(draw.weights)), sets)
        assert (draw.weights[never] * places < _UNIT).all()


def test_it_is_the_same_wherever_it_is_asked_first():
    shares = np.random.default_rng(2).dirichlet([1] * 40)
    whole = EvenDraw(shares.tolist()).sets_and_prior_draws_at(np.arange(300_000))
    rng = np.random.default_rng(5)
    for begin in (0, 1, 65_535, 65_536, 8191, *rng.integers(0, 290_000, 12).tolist()):
        fresh = EvenDraw(shares.tolist())
        for _ in range(2):  # and from what it has kept
            sets, before = fresh.sets_and_prior_draws_at(np.arange(begin, begin + 5000, 3))
            assert (sets == whole[0][begin : begin + 5000 : 3]).all()
            assert (before == whole[1][begin : begin + 5000 : 3]).all()
            fresh = pickle.loads(pickle.dumps(fresh))


def test_places_in_any_order():
    shares = [0.5, 0.3, 0.2]
    sets, before = EvenDraw(shares).sets_and_prior_draws_at(np.arange(100_000))
    asked = np.random.default_rng(1).integers(0, 100_000, 1000)
    found = EvenDraw(shares).sets_and_prior_draws_at(asked)
    assert (found[0] == sets[asked]).all() and (found[1] == before[asked]).all()


def test_sets_that_are_equally_due_come_in_an_order_of_chance():
    """Not one after another in turn: with two ranks each would have one set alone."""
    sets, _ = EvenDraw([0.5, 0.5], seed=1).sets_and_prior_draws_at(np.arange(20_000))
    assert sets.reshape(-1, 2).sum(axis=1).tolist() == [1] * 10_000
    assert abs(sets[::2].mean() - 0.5) < 0.03
    assert (sets != EvenDraw([0.5, 0.5], seed=2).sets_and_prior_draws_at(np.arange(20_000))[0]).any()


@pytest.mark.parametrize("shares", [[], [0], [1, -1], [1, 0], [1, float("nan")], [1, float("inf")]])
def test_no_share(shares):
    with pytest.raises(ValueError, match="one share above 0"):
        EvenDraw(shares)


def test_a_share_that_is_too_small_is_named():
    with pytest.raises(ValueError, match=r"set 1 has 5e-07 of all samples"):
        EvenDraw([1, MIN_SHARE / 2])
