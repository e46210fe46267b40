"""One rate for many threads."""

from __future__ import annotations

from typing import List

from hyperpod_kit.system.token_bucket import TokenBucket


def test_three_a_second_and_no_more() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))

    bucket = TokenBucket(3.0, burst=2, clock=lambda: now[0], sleep=sleep)
    for _ in range(5):
        bucket.wait_for_one_token_and_charge()
    assert slept == [0.333, 0.667, 1.0], "two at once, the third a third of a second later, and so on"
    now[0] = 100.0
    slept.clear()
    for _ in range(3):
        bucket.wait_for_one_token_and_charge()
    assert slept == [0.333], "a pause saves up no more than the burst"


def test_who_takes_many_makes_the_next_one_wait() -> None:
    now = [0.0]
    slept: List[float] = []
    bucket = TokenBucket(10.0, clock=lambda: now[0], sleep=slept.append)
    for count in (20, 5, 1):
        bucket.wait_for_one_token_and_charge(count)
    assert slept == [2.0, 2.5], "the first waits for nobody, and each for what is owed"
    now[0] = 100.0
    bucket.wait_for_one_token_and_charge(20)
    assert len(slept) == 2
