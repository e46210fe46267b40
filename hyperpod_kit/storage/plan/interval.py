"""How often to save: the expected share of time that saving and failing cost, and the interval at which it is least.

Failures come at random, `mtbf` seconds apart on average. A save stops training for `stall` seconds. Every
`per_storage`-th capture also goes to storage, where it is durable `persist` seconds later; a share `memory_share` of
failures leaves memory intact and is answered from the newest capture, the others from the newest durable one.

With one tier this is Daly's model (A higher order estimate of the optimum checkpoint interval for restart dumps, 2006),
in which a cycle of tau seconds of work costs M e^(R/M) (e^((tau + C)/M) - 1). With two tiers the same is solved for a
cycle of k segments: E_i = a + b E_(i+1) + (1 - b) E_0. tests/unit/storage/plan/test_interval.py holds both against a
simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, NamedTuple

from hyperpod_kit.job.goodput.time_table import goodput_of

MAX_CAPTURES = 200
"""Captures between two that go to storage, at most."""


@dataclass(frozen=True)
class FailureModel:
    """How a job fails and what it costs; all in seconds but the share. `restart`: from a failure to the first step;
    `load_memory`, `load_storage`: reading a checkpoint back, on top of that."""

    mtbf: float
    stall: float
    persist: float = 0.0
    memory_share: float = 0.0
    restart: float = 0.0
    load_memory: float = 0.0
    load_storage: float = 0.0


class Rhythm(NamedTuple):
    """When to save.

    `every`: seconds of work between two captures; `per_storage`: which capture goes to storage, 1 is each; `waste`:
    share of all time that is no training, of which `avoidable` is what saving and losing work cost.
    """

    every: float
    per_storage: int
    waste: float
    avoidable: float

    @property
    def goodput(self) -> float:
        """Compute goodput as `job status` does: the part of the time that a job holds its GPUs in which steps are done
        that last."""
        return goodput_of(1.0 - self.waste, 1.0)

    @property
    def seconds_between_storage_saves(self) -> float:
        """Compute the seconds of work between two that go to storage."""
        return self.every * self.per_storage


def young_interval(stall: float, mtbf: float) -> float:
    """Compute the seconds between two saves by Young's rule of 1974: the square root of 2 C M.

    Good while C is far below M.
    """
    return math.sqrt(2 * stall * mtbf)


def daly_interval(stall: float, mtbf: float) -> float:
    """Compute the interval with Daly's correction, for a C that is not far below M: worth it above about 5 % of M."""
    if stall >= 2 * mtbf:
        return mtbf
    share = stall / (2 * mtbf)
    return young_interval(stall, mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - stall


def wasted_time_share(failing: FailureModel, every: float, per_storage: int = 1) -> float:
    """Compute the share of all time that is no training, 0 to 1, with a capture each `every` seconds of work."""
    segment = every + failing.stall
    rate = 1 / failing.mtbf
    if segment * rate > 600:
        return 1.0
    fails = -math.expm1(-segment * rate)
    good = 1 - fails
    memory = failing.memory_share
    # What is lost on storage's side beyond the cycle under way: what was still on its way there.
    of_memory = _expected_duration_with_restarts(failing.restart + failing.load_memory, rate)
    of_storage = _expected_duration_with_restarts(failing.restart + failing.load_storage, rate) + min(
        failing.persist, segment * per_storage
    )
    stays = 1 - fails * memory
    step = (fails / rate + fails * (memory * of_memory + (1 - memory) * of_storage)) / stays
    back = good / stays
    if back <= 0:
        return 1.0
    exponent = -per_storage * math.log(back)
    if exponent > 600:
        return 1.0
    # step * (1 + b + ... + b^(k-1)) / b^k, written so that b = 1 (all failures survived by memory) is no special case.
    cycle_seconds = step * sum(math.exp(exponent) * back**number for number in range(per_storage))
    return 1 - every * per_storage / cycle_seconds


def _expected_duration_with_restarts(length: float, rate: float) -> float:
    """Compute the expected seconds to get through `length` seconds when each failure begins them again."""
    return math.expm1(min(length * rate, 600)) / rate


def best_rhythm(failing: FailureModel, *, min_interval: float = 1.0, max_captures: int = MAX_CAPTURES) -> Rhythm:
    """Find the rhythm of least waste: no two captures closer than `min_interval` seconds, none to storage before the
    last one is durable, and at most `max_captures` for each that goes there."""
    longest = max(min_interval * 2, 20 * failing.mtbf)
    best_rhythm: Rhythm | None = None
    for per_storage in range(1, max_captures + 1):
        if per_storage > 1 and not failing.memory_share:
            break
        lowest = max(min_interval, (failing.persist - failing.stall * per_storage) / per_storage)
        waste_at = partial(wasted_time_share, failing, per_storage=per_storage)
        every = _minimize_unimodal(waste_at, lowest, max(longest, lowest * 2))
        rhythm = rhythm_of_interval(failing, every, per_storage)
        if best_rhythm is not None and rhythm.waste > best_rhythm.waste * 1.0001:
            break
        if best_rhythm is None or rhythm.waste < best_rhythm.waste * 0.999:
            best_rhythm = rhythm
    assert best_rhythm is not None
    return best_rhythm


def rhythm_of_interval(failing: FailureModel, every: float, per_storage: int = 1) -> Rhythm:
    """Compute the rhythm of a given interval. `avoidable` leaves out the restarts, which no interval changes."""
    total_waste = wasted_time_share(failing, every, per_storage)
    without_restarts = replace(failing, restart=0.0, load_memory=0.0, load_storage=0.0)
    return Rhythm(every, per_storage, total_waste, wasted_time_share(without_restarts, every, per_storage))


def _minimize_unimodal(value: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function with one valley is least: golden section over the logarithm, to 0.01 %."""
    golden = (math.sqrt(5) - 1) / 2
    low_log, high_log = math.log(low), math.log(high)
    while high_log - low_log > 1e-4:
        low_probe, high_probe = high_log - golden * (high_log - low_log), low_log + golden * (high_log - low_log)
        if value(math.exp(low_probe)) <= value(math.exp(high_probe)):
            high_log = high_probe
        else:
            low_log = low_probe
    return math.exp((low_log + high_log) / 2)
