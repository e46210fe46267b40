"""Waiting for what other processes and threads bring about, with deadlines that a busy machine keeps.

A deadline is for what never comes. When one has passed, the machine's speed is measured, and a machine that is slow, or
was so in the last minutes, gets as much more time: nothing is measured, and nothing waits longer, where all comes in
time.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Optional, TypeVar

T = TypeVar("T")

STEPS = 1_000_000
REFERENCE_SECONDS = 0.08
"""What the steps take of a processor of the machine whose seconds the deadlines of the tests are."""
MOST = 40.0
"""Times that a deadline is prolonged at most: what never comes ends a test, on every machine."""


def slowness_now() -> float:
    """How many times longer this machine takes at this moment, with all that runs on it, than an idle one."""
    begun = time.monotonic()
    value = 0
    for step in range(STEPS):
        value = (value * 31 + step) % 1_000_003
    return min(MOST, max(1.0, (time.monotonic() - begun) / REFERENCE_SECONDS))


def slowness() -> float:
    """The same of the last minutes, by their load averages, where that is more.

    A machine may be idle at the moment at which a deadline has passed, and have been busy all the time before.
    """
    recent = max(os.getloadavg()[:2]) / (os.cpu_count() or 1)
    return max(slowness_now(), min(MOST, recent))


def scaled(seconds: float) -> float:
    """A deadline that the product is given, and that has to pass: as long as this machine needs it to be now."""
    return seconds * slowness_now()


class Deadline:
    """`timeout` seconds from now, of an idle machine of the usual speed."""

    def __init__(self, timeout: float) -> None:
        self._begun = time.monotonic()
        self._timeout = timeout
        self._end = self._begun + timeout

    def has_passed(self) -> bool:
        """Whether it has, for a machine as slow as this one is."""
        if time.monotonic() < self._end:
            return False
        self._end = max(self._end, self._begun + self._timeout * slowness())
        return time.monotonic() >= self._end


def until(condition: Callable[[], Optional[T]], timeout: float = 60.0, *, what: str = "") -> T:
    """What `condition` gives, once it gives something true. `what` is named when it does not before the deadline."""
    deadline = Deadline(timeout)
    while True:
        value = condition()
        if value:
            return value
        assert not deadline.has_passed(), f"no {what or 'such thing'} within {timeout:g} s"
        time.sleep(0.02)
