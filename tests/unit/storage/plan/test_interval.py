"""How often to save, against a simulation and against published figures."""

from __future__ import annotations

import math

import pytest

from hyperpod_kit.storage.plan import failures, interval
from hyperpod_kit.storage.plan.interval import FailureModel
from tests.support.rows import share
from tests.unit.storage.plan import simulation

HOUR = 3600.0
CASES = {
    "rare failures, a dear save": (FailureModel(97.7 * HOUR, 332), 1),
    "16,384 GPUs": (FailureModel(3.05 * HOUR, 92, restart=600), 1),
    "a save of 5 % of the time between failures": (FailureModel(2 * HOUR, 360, restart=300), 1),
    "a save of 20 %": (FailureModel(HOUR, 720, restart=300), 1),
    "loading takes long": (FailureModel(3 * HOUR, 60, restart=300, load_storage=900), 1),
    "behind training's back": (FailureModel(3 * HOUR, 0.2, persist=300, restart=300), 1),
    "two tiers": (FailureModel(3 * HOUR, 5, persist=200, memory_share=0.75, restart=300, load_storage=200), 8),
    "two tiers, persist nearly a cycle": (FailureModel(2 * HOUR, 2, persist=900, memory_share=0.9, restart=120), 6),
}


@pytest.mark.parametrize("name", share(CASES, 2))
def test_d10_the_expected_waste_is_the_simulated_one_within_2_percent(name: str) -> None:
    failing, per_storage = CASES[name]
    rhythm = interval.best_rhythm(failing, max_captures=per_storage)
    for every in (rhythm.every, 3 * rhythm.every):
        expected = interval.wasted_time_share(failing, every, per_storage)
        assert simulation.waste(failing, every, per_storage) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", share(CASES, 2))
def test_d10_no_interval_is_simulated_to_waste_less_than_the_best_by_2_percent(name: str) -> None:
    failing, per_storage = CASES[name]
    rhythm = interval.best_rhythm(failing, max_captures=per_storage, min_interval=max(1.0, failing.persist))
    least = simulation.waste(failing, rhythm.every, rhythm.per_storage, failures=20_000)
    for factor in (0.25, 0.5, 0.75, 1.5, 2.0, 4.0):
        every = max(rhythm.every * factor, failing.persist / rhythm.per_storage)
        assert simulation.waste(failing, every, rhythm.per_storage, failures=20_000) >= least * 0.98


@pytest.mark.parametrize(("stall", "percent"), [(332, 4.35), (92, 2.29), (0.2, 0.11)])
def test_waste_of_512_gpus_is_what_young_says(stall: float, percent: float) -> None:
    mtbf = 50_000 / 512 * HOUR
    assert interval.best_rhythm(FailureModel(mtbf, stall), min_interval=0.1).waste * 100 == pytest.approx(
        percent, rel=0.05
    )


def test_failures_are_those_that_meta_counted() -> None:
    seconds, words = failures.estimate_mtbf_seconds_from_fleets(16_384)
    assert seconds / HOUR == pytest.approx(54 * 24 / 419) and "Llama 3" in words
    assert (
        failures.estimate_mtbf_seconds_from_fleets(1024)[0] / HOUR == pytest.approx(7.9)
        and "RSC-1" in failures.estimate_mtbf_seconds_from_fleets(1024)[1]
    )


def test_dalys_rule_is_near_the_optimum_and_youngs_only_where_saves_are_cheap() -> None:
    cheap, dear = FailureModel(HOUR, 1), FailureModel(HOUR, 720)
    assert interval.young_interval(1, HOUR) == pytest.approx(interval.best_rhythm(cheap).every, rel=0.02)
    assert interval.daly_interval(720, HOUR) == pytest.approx(interval.best_rhythm(dear).every, rel=0.02)
    assert interval.young_interval(720, HOUR) > 1.2 * interval.best_rhythm(dear).every
    assert interval.daly_interval(3 * HOUR, HOUR) == HOUR


def test_two_tiers_waste_less_than_one_where_storage_is_slow() -> None:
    slow = FailureModel(HOUR, 1, persist=1200, memory_share=0.75)
    one = interval.best_rhythm(slow, max_captures=1, min_interval=1200)
    two = interval.best_rhythm(slow)
    assert two.waste < one.waste and two.per_storage > 1
    assert two.seconds_between_storage_saves + two.per_storage * slow.stall >= 1200 * 0.999


@pytest.mark.parametrize(
    "failing",
    [
        FailureModel(1, 1000),
        FailureModel(1e-3, 1, restart=1e6),
        FailureModel(1e12, 1e-6),
        FailureModel(60, 1, memory_share=1.0),
    ],
)
def test_what_cannot_go_well_is_a_waste_and_no_error(failing: FailureModel) -> None:
    found = interval.best_rhythm(failing)
    assert 0 <= found.waste <= 1 and math.isfinite(found.every)
