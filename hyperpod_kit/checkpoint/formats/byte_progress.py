"""How far a copy of many bytes has come, said now and then to who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from hyperpod_kit.untrusted import terminal

Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and with how many there are about."""
EVERY = 5.0
"""Seconds between two words."""
_MIB = 1 << 20


def unsaid(done: int, whole: int) -> None:
    """A Progress of which nobody hears."""


class CountedBytes:
    """Takes bytes as they are done, for a Progress; `whole`: how many there are about."""

    def __init__(self, whole: int, progress: Progress) -> None:
        self._done, self._whole, self._progress = 0, whole, progress

    def __call__(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._whole)


class SaidProgress:
    """A Progress for a person, on standard error; what is over before `every` seconds says nothing."""

    def __init__(self, what: str, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._every, self._clock = what, every, clock
        self._last = clock()

    def __call__(self, done: int, whole: int) -> None:
        now = self._clock()
        if now - self._last >= self._every:
            self._last = now
            terminal.say(f"{self._what} {done // _MIB} of {max(whole, done) // _MIB} MiB")
