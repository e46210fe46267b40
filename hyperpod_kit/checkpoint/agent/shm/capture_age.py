"""How old a capture is: the seconds since it was sealed, and the one place that says so.

The moment is among the words about the job on the capture's control page, where an older version passes it on as it
is. It is a moment of the clock that counts since the node has booted: nobody sets that clock, neither a person nor NTP,
and shared memory does not outlive the boot. The modification time of a slot's file says nothing: the kernel moves it
when a page of a mapped file is written for the first time, which is when the run began. (It is set at each sealing too,
for agents and flushes of builds before 0.1.0.)

A capture without that moment (one of a build before 0.1.0, of another boot or of another time namespace, one from the
future) is of unknown age, which is never "too old". The first flush that sees its trainer dead dates it, and it counts
from then on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import replace
from typing import Callable, Iterable, NamedTuple, Optional

from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, SEALED_AT, Page

MAX_AGE = 86400.0
"""Seconds after which a capture is given up that no storage has taken, and nobody came for."""

_DIGITS = 32


class BootMoment(NamedTuple):
    """A moment as one boot of one node counts them. `clock`: which clock it is of; `seconds` since the boot."""

    clock: str
    seconds: float

    def __str__(self) -> str:
        # Never a moment that is yet to come.
        return f"{self.clock}/{int(self.seconds * 1000) / 1000:.3f}"


Clock = Callable[[], BootMoment]


def now() -> BootMoment:
    """This moment."""
    return BootMoment(_boot_clock_id(), time.clock_gettime(time.CLOCK_BOOTTIME))


@functools.lru_cache(maxsize=1)
def _boot_clock_id() -> str:
    """Return an id of this boot and of the time namespace, in which the same moment may have another number."""
    return f"{_boot_id_prefix()}.{_time_namespace_id()}"


def _boot_id_prefix() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as stream:
            return stream.read(8)
    except OSError:
        return ""


def _time_namespace_id() -> str:
    try:
        return "".join(filter(str.isdigit, os.readlink("/proc/self/ns/time")))
    except OSError:
        return ""


def dated(page: Page, moment: BootMoment) -> Page:
    """Return the page with `moment` as the time at which its capture was sealed."""
    return page._replace(origin=replace(page.origin, job={**page.origin.job, SEALED_AT: str(moment)}))


def is_dated(page: Page) -> bool:
    """Whether the page says when its capture was sealed, in whatever way."""
    return SEALED_AT in page.origin.job


def seconds_since_sealing(page: Page, moment: BootMoment) -> Optional[float]:
    """Return the seconds from the sealing of the capture to `moment`; None where that is unknown."""
    sealed = _parse_moment(page.origin.job.get(SEALED_AT))
    if sealed is None or sealed.clock != moment.clock or sealed.seconds > moment.seconds:
        return None
    return moment.seconds - sealed.seconds


def _parse_moment(word: object) -> Optional[BootMoment]:
    """What a page says, which its user may have written."""
    if not isinstance(word, str):
        return None
    clock, _, text = word.rpartition("/")
    if len(text) > _DIGITS or not text.isascii():
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    if seconds == seconds:
        return BootMoment(clock, seconds)
    return None


def is_known_to_be_expired(page: Page, max_age: float, moment: BootMoment) -> bool:
    """Whether a capture is older than `max_age` seconds. One of unknown age is not."""
    seconds = seconds_since_sealing(page, moment)
    return seconds is not None and seconds > max_age


def youngest_age_if_all_known(pages: Iterable[Page], moment: BootMoment) -> Optional[float]:
    """The age of the youngest whole capture of these; None where there is none, or the age of one is not known."""
    ages = [seconds_since_sealing(page, moment) for page in pages if page.state in COMPLETE_STATES]
    dated_ages = [seconds for seconds in ages if seconds is not None]
    if dated_ages and len(dated_ages) == len(ages):
        return min(dated_ages)
    return None
