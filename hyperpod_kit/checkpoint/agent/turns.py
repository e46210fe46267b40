"""Work on several storages, each in a thread of its own, one after the other: one that hangs holds up no other.

A thread that the kernel holds on a dead mount cannot be ended. It is left behind: it goes on when its storage does, and
ends with the process.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Generic, Optional, Sequence, TypeVar

from hyperpod_kit.checkpoint.agent import io_progress

STILL = 10.0
"""Seconds without a byte moved after which the next one has its turn."""

_POLL = 0.5
"""Seconds between two looks at whether something moves."""

T = TypeVar("T")


class StorageTurn(Generic[T]):
    """Work on one storage. `announce` is done at once, `work` when its turn comes. Neither raises anything."""

    def __init__(self, announce: Callable[[], None], work: Callable[[], T], finish: Callable[[], None]) -> None:
        """`finish`: after `work`, whose result counts by then."""
        self._announce, self._work, self._finish = announce, work, finish
        self._has_turn = threading.Event()
        self.announced, self.ended = threading.Event(), threading.Event()
        self.result: Optional[T] = None
        self.has_result = False

    def start_thread(self) -> None:
        """Start a thread that announces, and then waits for its turn."""
        threading.Thread(target=self._run, daemon=True, name="turn").start()

    def give_turn(self) -> None:
        """Let the work begin."""
        if not self._has_turn.is_set():
            io_progress.record_progress()  # time before it is no standstill
        self._has_turn.set()

    def _run(self) -> None:
        try:
            self._announce()
            self.announced.set()
            self._has_turn.wait()
            self.result = self._work()
            self.has_result = True
            self._finish()
        finally:
            self.announced.set()
            self.ended.set()


class TurnLimit:
    """Until when turns are waited for: `end` of the monotonic clock, or `stall` seconds without a byte moved."""

    def __init__(self, end: float, stall: float) -> None:
        self._end, self._stall = end, stall

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for so long."""
        return io_progress.seconds_since_progress() >= self._stall

    def is_reached(self) -> bool:
        """Whether nobody waits any longer."""
        return time.monotonic() >= self._end or self.is_stalled

    def wait_while_progressing(self, event: threading.Event, max_idle_seconds: float) -> None:
        """Wait for an event, until nothing has moved for `max_idle_seconds` or the limit is reached."""
        while (
            not event.wait(_POLL) and io_progress.seconds_since_progress() < max_idle_seconds and not self.is_reached()
        ):
            pass


def run_turns(turns: Sequence[StorageTurn[T]], limit: TurnLimit, on_all_announced: Callable[[], None]) -> None:
    """Start all turns, wait until each has announced, then give each its turn; return when all have ended, or
    the limit is reached.

    `on_all_announced` is called when all that can be announced is.
    """
    io_progress.record_progress()
    for turn in turns:
        turn.start_thread()
    for turn in turns:
        limit.wait_while_progressing(turn.announced, STILL)
    on_all_announced()
    ready = [turn for turn in turns if turn.announced.is_set()]
    for turn in ready:
        turn.give_turn()
        limit.wait_while_progressing(turn.ended, STILL)
    for turn in turns:
        turn.give_turn()
    for turn in turns:
        limit.wait_while_progressing(turn.ended, math.inf)
