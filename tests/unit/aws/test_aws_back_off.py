"""Calls that are turned away, and calls side by side."""

from __future__ import annotations

import threading
from typing import Callable

import pytest

from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.parallel import map_in_order
from hyperpod_kit.errors import AwsError, Throttled
from tests.support.clock import FakeClock


def turned_away(times: int) -> Callable[[], str]:
    left = [times]

    def call() -> str:
        if left[0]:
            left[0] -= 1
            raise Throttled("later")
        return "done"

    return call


def test_later_and_later_until_it_is_answered() -> None:
    clock = FakeClock()
    assert retry_while_throttled(turned_away(6), clock=clock, sleep=clock.sleep, chance=lambda: 1.0) == "done"
    assert clock.slept == [1, 2, 4, 8, 8, 8]


def test_not_for_ever() -> None:
    clock = FakeClock()
    with pytest.raises(Throttled):
        retry_while_throttled(turned_away(1000), patience=60, clock=clock, sleep=clock.sleep, chance=lambda: 0.0)
    assert 50 < clock.now <= 60


def test_another_error_is_not_repeated() -> None:
    clock = FakeClock()

    def refused() -> str:
        raise AwsError("Op", "AccessDenied", "no")

    with pytest.raises(AwsError):
        retry_while_throttled(refused, clock=clock, sleep=clock.sleep)
    assert clock.slept == []


def test_side_by_side_and_still_in_order() -> None:
    meet = threading.Barrier(3, timeout=10)

    def work(number: int) -> int:
        meet.wait()  # ends only when three are at work at once
        return number * 10

    assert list(map_in_order(work, [1, 2, 3], 3)) == [10, 20, 30]
    assert list(map_in_order(work, [], 3)) == []


def test_the_first_that_fails_is_the_last() -> None:
    begun: list[int] = []
    seen = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise AwsError("Op", "AccessDenied", "no")
        if number > 1:
            seen.wait(20)  # the one that had begun already
        return number

    with pytest.raises(AwsError):
        list(map_in_order(work, range(1000), 1))
    seen.set()
    assert len(begun) <= 3
