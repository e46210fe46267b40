"""Pauses that grow, and waits with a bound."""

from __future__ import annotations

import pytest

from hyperpod_kit.system.wait import BackOff, fixed_pause, poll_until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        (BackOff(1.0, 10.0), [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        (BackOff(1.0, 5.0, factor=1.5), [0.0, 1.0, 1.5, 2.25, 3.375, 5.0, 5.0]),
        (fixed_pause(0.5), [0.0] + [0.5] * 6),
        (BackOff(400.0, 300.0), [0.0] + [300.0] * 6),
    ],
)
def test_pauses_grow_up_to_the_longest(pauses: BackOff, expected: list[float]) -> None:
    assert [pauses.pause_seconds(failures) for failures in range(7)] == expected
    assert pauses.pause_seconds(-3) == 0.0


def test_after_a_hundred_thousand_failures_it_is_still_the_longest() -> None:
    assert BackOff(1.0, 10.0).pause_seconds(100_000) == 10.0


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 4.0), (0.5, 6.0), (1.0, 8.0)])
def test_a_share_of_a_pause_is_drawn(draw: float, expected: float) -> None:
    pauses = BackOff(1.0, 8.0, by_chance=0.5)
    assert pauses.pause_seconds(9, lambda: draw) == expected and pauses.seconds_without_jitter(9) == 8.0
    assert 4.0 <= pauses.pause_seconds(9) <= 8.0


def test_a_wait_ends_with_the_first_good_look() -> None:
    clock = Clock()
    looks = iter(range(100))
    found = poll_until(
        lambda: next(looks), lambda n: n == 3, BackOff(0.5, 2.0), seconds=60, clock=lambda: clock.now, sleep=clock.sleep
    )
    assert found == 3 and clock.slept == [0.5, 1.0, 2.0]


def test_a_wait_in_vain_ends_with_a_look_at_the_very_end() -> None:
    clock = Clock()
    seen: list[float] = []

    def look() -> None:
        seen.append(clock.now)

    poll_until(look, bool, fixed_pause(2.0), seconds=5.0, clock=lambda: clock.now, sleep=clock.sleep)
    assert seen == [0.0, 2.0, 4.0, 5.0]
    seen.clear()
    poll_until(look, bool, fixed_pause(2.0), seconds=0.0, clock=lambda: clock.now, sleep=clock.sleep)
    assert len(seen) == 1
