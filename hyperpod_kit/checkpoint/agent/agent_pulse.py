"""What the agent says of itself: that it is there, and whether its work goes on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional

from hyperpod_kit.checkpoint.agent import movement
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, Alive, Stalled
from hyperpod_kit.checkpoint.agent.worker import Worker
from hyperpod_kit.environment import HPK_AGENT_STALL

EVERY = 5.0
"""Seconds between two signs of life."""

STALL = 600.0
"""Seconds without a byte moved, with work to do, until that counts as standing still. HPK_AGENT_STALL sets another
number. Storage that fails over needs a minute or two."""


class Pulse:
    """Called from the agent's main thread: so it also says that this thread goes on. `moving` is called while bytes
    move, for those that wait for this agent's end."""

    def __init__(
        self,
        tell: Callable[[AgentEvent], object],
        workers: List[Worker],
        commits: Optional[Worker],
        moving: Callable[[], object],
    ) -> None:
        self._tell = tell
        self._moving = moving
        self._workers = [*workers, *([commits] if commits is not None else [])]
        self._limit = float(os.environ.get(HPK_AGENT_STALL, STALL))
        self._next = 0.0
        self._said = ""

    def beat(self) -> None:
        """Say what is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + min(EVERY, self._limit / 2)
        why = self.standstill()
        if bool(why) != bool(self._said):
            self._said = why
            self._tell(Stalled(why))
        self._tell(Alive())
        if movement.still_for() < EVERY and any(worker.busy for worker in self._workers):
            self._moving()

    def standstill(self) -> str:
        """Which work does not go on; "" when all does, or there is none."""
        still = movement.still_for()
        stuck = [worker.name for worker in self._workers if worker.busy]
        if not stuck or still < self._limit:
            return ""
        return f"the agent (pid {os.getpid()}) has moved nothing for {still:.0f} s, busy with: {', '.join(stuck)}"
