"""When `Manager.step` saves: the same steps on every rank, without asking in each step."""

from __future__ import annotations

import datetime
import time

from hyperpod_kit.checkpoint.collectives import Ranks


class SaveSchedule:
    """Every so many steps, or about every so much time.

    Clocks differ between ranks, so for a time rank 0 turns it into a number of steps and tells the others: one small
    broadcast for each save, none in the steps between.
    """

    def __init__(self, every: int | datetime.timedelta | None, ranks: Ranks) -> None:
        """Raises ValueError unless `every` is positive."""
        self._steps = every if isinstance(every, int) else None
        self._seconds = every.total_seconds() if isinstance(every, datetime.timedelta) else None
        if any(value is not None and value <= 0 for value in (self._steps, self._seconds)):
            raise ValueError(f"every is {every!r}, expected a positive number of steps or a positive time")
        self._ranks = ranks
        self._since: tuple[int, float] | None = None  # step and time of the last save
        self._ask = 0

    def due(self, step: int) -> bool:
        """Whether to save after this step. Raises ValueError when no schedule was given."""
        if self._steps is not None:
            return (step + 1) % self._steps == 0
        if self._seconds is None:
            raise ValueError("Manager.step needs a schedule: Manager(root, every=steps or timedelta)")
        if self._since is None:
            self._since, self._ask = (step, time.monotonic()), step + 1
            return False
        if step < self._ask:
            return False
        due, self._ask = self._ranks.broadcast(self._look(step) if self._ranks.rank == 0 else None)
        if due:
            self._since = step, time.monotonic()
        return bool(due)

    def _look(self, step: int) -> tuple[bool, int]:
        """(save now, the step at which to look again): rank 0's answer."""
        assert self._since is not None and self._seconds is not None
        steps, elapsed = max(1, step - self._since[0]), time.monotonic() - self._since[1]
        pace = max(elapsed / steps, 1e-6)
        if elapsed + pace / 2 >= self._seconds:
            return True, step + max(1, round(self._seconds / pace))
        # The first steps are slow ones, so the pace is looked at again after at most as many steps as it was seen for.
        return False, step + max(1, min(round((self._seconds - elapsed) / pace), steps))
