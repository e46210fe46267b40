"""Whether this start still has the root, as far as rank 0's agent knows."""

from __future__ import annotations

from typing import Callable

from hyperpod_kit.checkpoint.agent.control_page import Key


class Ownership:
    """`incarnation`: of this start. `is_trainer_alive`: its trainer lives, and waits for what becomes of its saves.

    A dead trainer is misled by nobody: what it has left is brought to storage whoever has started since. `taken_by`:
    who has the root in this start's place.
    """

    def __init__(self, incarnation: str, is_trainer_alive: Callable[[], bool]) -> None:
        self._incarnation, self._is_trainer_alive = incarnation, is_trainer_alive
        self.taken_by = ""

    def is_own_live_capture(self, key: Key) -> bool:
        """Whether this start made that capture, and its trainer will hear that it is durable."""
        return key[2] == self._incarnation and self._is_trainer_alive()
