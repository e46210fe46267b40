"""The outcome of one save, which the caller can always see.

`Manager.save` and `Manager.step` return a `Handle`; `saves` moves it forward as the agent reports.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable

from hyperpod_kit.checkpoint.saves.save_schedule import Tier
from hyperpod_kit.renamed import renamed_fields


class SaveState(str, enum.Enum):
    """How far a save is, in this order; the last four are ends.

    `durable`: committed on the root. `skipped`: no slot was free. `failed`: see the handle's `reason`.
    """

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


@renamed_fields(attempt="checkpoint_id", become="advance")
class Handle:
    """Follow one save of a `Manager`.

    `Manager.save` and `Manager.step` make it; a program only reads it.

    Args:
        step: The step that was saved.
        epoch: The number of the run's start that saves.
        seq: The number of the save over the whole life of the root.
        changed: Guards the handle, and is notified of every change.
        tier: What the save is for, "memory" or "storage".
        waiting: Called each second while `wait` waits.

    Attributes:
        stall_ms: For how many milliseconds training stood still, the fence included.
        reason: Why the save did not become durable; None when it did, or may yet.
        checkpoint_id: The name of the checkpoint on storage; None until the save is durable.

    Example:
        With a `manager` that has restored a `state`, and the number `step` of the step just completed:

            handle = manager.save(step, state)
            if not handle.wait("durable", timeout=60):
                print(f"step {handle.step} is {handle.state}: {handle.reason}")
    """

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
        self.checkpoint_id: str | None = None
        self._changed = changed
        self._waiting = waiting
        self._callbacks: list[Callable[[Handle], object]] = []

    @property
    def state(self) -> str:
        """How far the save is, as a plain string: see `SaveState`."""
        return self._state.value

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to this save."""
        return self._state in ENDS

    def wait(self, level: str | None = None, timeout: float | None = None) -> bool:
        """Wait until the save has reached a level.

        Args:
            level: "captured": this rank's copy is complete. "sealed": every rank's copy is in memory, with its digests.
                "local": it is on the nodes' own disks. "durable": it is committed on storage. None: "durable", or
                "sealed" of a save for memory, which counts even when a newer one has taken its place.
            timeout: How many seconds to wait at most. None: without end.

        Returns:
            True when the save is at that level. False when the time is over, or as soon as it is certain that it never
            will be: see `reason`.

        Raises:
            ValueError: `level` is none of those above.
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

        Args:
            callback: Called from the thread that receives the events of all saves, which wait for it: do nothing slow
                in it. What it raises there is logged.

        Example:
            With a `handle`:

                handle.add_done_callback(lambda save: print(save.step, save.state))
        """
        with self._changed:
            if not self.final:
                self._callbacks.append(callback)
                return
        callback(self)

    def take_callbacks(self) -> list[Callable[[Handle], object]]:
        """Take the callbacks that are due now that this save has ended.

        Returns:
            The callbacks; the handle has none of them any more.
        """
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def advance(self, state: SaveState, reason: str | None = None) -> None:
        """Move the save forward, with the condition held; it never moves back, and never leaves an end.

        Args:
            state: The state to enter.
            reason: Why, for `reason`; None where there is nothing to say.
        """
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
