"""When `Manager.step` saves, and whereto: the same on every rank, without asking in each step."""

from __future__ import annotations

import datetime
import time
from typing import Literal, Union

from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.saves.preemption_signal import PreemptionSignal

Tier = Literal["memory", "storage"]
TIERS = ("memory", "storage")
"""`storage`: through memory to the root. `memory`: it stays there until a newer one is there, or training ends."""

Interval = Union[int, datetime.timedelta]


class Cadences:
    """Saves at `every`; with `storage_every` those go to storage that are due by it, and the others stay in memory."""

    def __init__(
        self,
        every: Interval | None,
        storage_every: Interval | None,
        ranks: Ranks,
        preemption: PreemptionSignal | None = None,
    ) -> None:
        """`preemption`: what makes a step the last one.

        Raises ValueError unless both are positive, and `storage_every` is the longer one."""
        self.preemption = preemption or PreemptionSignal(ranks, enabled=False)
        self._every = SaveSchedule(every, ranks)
        self._storage: SaveSchedule | None = None
        if storage_every is not None:
            self._storage = SaveSchedule(storage_every, ranks, "storage_every")
        if storage_every is not None and every is None:
            raise ValueError("storage_every needs every: the saves between two saves to storage are kept in memory")
        if isinstance(every, int) and isinstance(storage_every, int) and storage_every < every:
            raise ValueError(f"storage_every is {storage_every}, expected at least every, which is {every}")

    def due(self, step: int) -> Tier | None:
        """Return where to save to after this step, or None for no save. Raises ValueError when no schedule
        was given."""
        # Both are asked in every step: one of time keeps count of them.
        storage = self._storage is not None and self._storage.due(step)
        due = self._every.due(step)
        if storage or (due and self._storage is None):
            return "storage"
        if due:
            return "memory"
        return None


class SaveSchedule:
    """Every so many steps, or about every so much time.

    Clocks differ between ranks, so for a time rank 0 turns it into a number of steps and tells the others: one small
    broadcast for each save, none in the steps between.
    """

    def __init__(self, every: Interval | None, ranks: Ranks, name: str = "every") -> None:
        """Raises ValueError unless `every`, which the caller knows as `name`, is positive."""
        self._steps: int | None = None
        self._seconds: float | None = None
        if isinstance(every, int):
            self._steps = every
        if isinstance(every, datetime.timedelta):
            self._seconds = every.total_seconds()
        if any(value is not None and value <= 0 for value in (self._steps, self._seconds)):
            raise ValueError(f"{name} is {every!r}, expected a positive number of steps or a positive time")
        self._ranks = ranks
        self._since: tuple[int, float] | None = None  # step and time of the last save
        self._next_check = 0

    def due(self, step: int) -> bool:
        """Return whether to save after this step. For a schedule by time a collective in the steps at
        which rank 0 decides. Raises ValueError when no schedule was given."""
        if self._steps is not None:
            return (step + 1) % self._steps == 0
        if self._seconds is None:
            raise ValueError("Manager.step needs a schedule: Manager(root, every=steps or timedelta)")
        if self._since is None:
            self._since, self._next_check = (step, time.monotonic()), step + 1
            return False
        if step < self._next_check:
            return False
        decision = None
        if self._ranks.rank == 0:
            decision = self._decide_due_and_next_check_step(step)
        due, self._next_check = self._ranks.broadcast(decision)
        if due:
            self._since = step, time.monotonic()
        return bool(due)

    def _decide_due_and_next_check_step(self, step: int) -> tuple[bool, int]:
        """Return, on rank 0, (whether to save now, the step at which to decide again)."""
        assert self._since is not None and self._seconds is not None
        steps, elapsed = max(1, step - self._since[0]), time.monotonic() - self._since[1]
        pace = max(elapsed / steps, 1e-6)
        if elapsed + pace / 2 >= self._seconds:
            return True, step + max(1, round(self._seconds / pace))
        # The first steps are slow ones, so the pace is looked at again after at most as many steps as it was seen for.
        return False, step + max(1, min(round((self._seconds - elapsed) / pace), steps))
