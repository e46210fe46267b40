"""How far a copy of many bytes has come, said now and then to who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from hyperpod_kit.untrusted import terminal

Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and with how many there are about."""
REPORT_INTERVAL_S = 5.0
"""Seconds between two words."""
_MIB = 1 << 20


def no_progress(done: int, total: int) -> None:
    """A Progress that reports nothing."""


class CountedBytes:
    """Takes bytes as they are done, for a Progress; `total`: how many there are about."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)


class TerminalProgress:
    """A Progress for a person, on standard error; what is over before `interval` seconds says nothing."""

    def __init__(
        self, label: str, interval: float = REPORT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label, self._interval, self._clock = label, interval, clock
        self._last_report = clock()

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._last_report >= self._interval:
            self._last_report = now
            terminal.print_stderr(f"{self._label} {done // _MIB} of {max(total, done) // _MIB} MiB")
