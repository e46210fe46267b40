"""The outcome of one save, which the caller can always see."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable

from hyperpod_kit.checkpoint.save_schedule import Tier


class SaveState(str, enum.Enum):
    """How far a save is, in this order; the last four are ends."""

    COPYING = "copying"
    """Overlapped with training."""
    CAPTURED = "captured"
    """This rank's copy is whole."""
    SEALED = "sealed"
    """Every rank has it in memory, with its digests."""
    LOCAL = "local"
    """On every node's own disk."""
    DURABLE = "durable"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    """Another rank does not have this save, or a newer one took its place."""
    FAILED = "failed"

    __str__ = str.__str__


_POLL_SECONDS = 1.0
"""Seconds between two words of a wait that goes on."""

LEVELS = (SaveState.CAPTURED, SaveState.SEALED, SaveState.LOCAL, SaveState.DURABLE)
"""What can be waited for. A save that has one of them has had, or needs no more, those before it."""

ENDS = frozenset((SaveState.DURABLE, SaveState.SKIPPED, SaveState.DROPPED, SaveState.FAILED))

_ORDER = tuple(SaveState)


class Handle:
    """A save: `state`, `stall_ms` (how long training stood still, the fence included), `reason` when it did not
    become durable, `attempt` (its name on storage) when it did; `tier`: what it is for, "memory" or "storage"."""

    def __init__(
        self,
        step: int,
        epoch: int,
        seq: int,
        changed: threading.Condition,
        tier: Tier = "storage",
        *,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.step = step
        self.epoch = epoch
        self.seq = seq
        self.tier: Tier = tier
        self._was_sealed = False
        self._state = SaveState.COPYING
        self.stall_ms = 0.0
        self.reason: str | None = None
        self.attempt: str | None = None
        self._changed = changed
        self._waiting = waiting
        self._callbacks: list[Callable[[Handle], object]] = []

    @property
    def state(self) -> str:
        """A plain text: see SaveState."""
        return self._state.value

    @property
    def final(self) -> bool:
        """Nothing more will happen to this save."""
        return self._state in ENDS

    def wait(self, level: str | None = None, timeout: float | None = None) -> bool:
        """Wait until every rank's copy is `sealed` in memory, on the nodes' own disks (`local`), or `durable`.

        `captured` is this rank's copy alone. None: `durable`, or `sealed` of a save for memory, which is so even when a
        newer one has its place meanwhile. False when the time (seconds) is over, or as soon as it is certain that it
        never will be; see `reason`.
        """
        if level is None:
            level = SaveState.DURABLE.value
            if self.tier == "memory":
                level = SaveState.SEALED.value
        if level not in LEVELS:
            raise ValueError(f"level is {level!r}, expected one of {', '.join(LEVELS)}")
        enough = LEVELS[LEVELS.index(SaveState(level)) :]
        end = None
        if timeout is not None:
            end = time.monotonic() + timeout
        with self._changed:
            while self._state not in enough and not self.final:
                remaining = None
                if end is not None:
                    remaining = end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                # Who waits for storage does not hang: the agent says when nothing moves.
                self._waiting()
                pause = _POLL_SECONDS
                if remaining is not None:
                    pause = min(remaining, _POLL_SECONDS)
                self._changed.wait(pause)
            served = self.tier == "memory" and self._was_sealed and SaveState.SEALED in enough
            return served or self._state in enough

    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Call `callback(handle)` once when nothing more will happen to this save, now if that is so already.

        It is called from a thread that hears of other saves only afterwards: do nothing long in it. What it raises is
        logged.
        """
        with self._changed:
            if not self.final:
                self._callbacks.append(callback)
                return
        callback(self)

    def take_callbacks(self) -> list[Callable[[Handle], object]]:
        """Who is to be called now that this save has had its end."""
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def advance(self, state: SaveState, reason: str | None = None) -> None:
        """Called by the manager with the condition held; a save only moves forward, and an end is never left."""
        if not self.final and _ORDER.index(state) > _ORDER.index(self._state):
            self._state = state
            self._was_sealed = self._was_sealed or state is SaveState.SEALED
            self.reason = reason
            self._changed.notify_all()

    def __repr__(self) -> str:
        tail = ""
        if self.reason:
            tail = f", {self.reason}"
        return f"<save of step {self.step}: {self.state}{tail}>"
