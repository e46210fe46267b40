"""What the agent says of itself: that it is there, and whether its work goes on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional

from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.process.worker import Worker
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, Alive, Stalled
from hyperpod_kit.environment import HPK_AGENT_STALL

INTERVAL = 5.0
"""Seconds between two signs of life."""

STALL = 600.0
"""Seconds without a byte moved, with work to do, until that counts as standing still. HPK_AGENT_STALL sets another
number. Storage that fails over needs a minute or two."""


class Heartbeat:
    """Called from the agent's main thread: so it also says that this thread goes on. `on_progress` is called while
    bytes move, for those that wait for this agent's end."""

    def __init__(
        self,
        send_event: Callable[[AgentEvent], object],
        workers: List[Worker],
        commit_worker: Optional[Worker],
        on_progress: Callable[[], object],
    ) -> None:
        self._send_event = send_event
        self._on_progress = on_progress
        self._workers = [*workers, *([commit_worker] if commit_worker is not None else [])]
        self._limit = float(os.environ.get(HPK_AGENT_STALL, STALL))
        self._next = 0.0
        self._reported_stall = ""

    def send_signs_of_life_if_due(self) -> None:
        """Send a sign of life, and that work stalls or goes on again, unless the last sign is too recent."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + min(INTERVAL, self._limit / 2)
        stall = self.describe_stall()
        if bool(stall) != bool(self._reported_stall):
            self._reported_stall = stall
            self._send_event(Stalled(stall))
        self._send_event(Alive())
        if io_progress.seconds_since_progress() < INTERVAL and any(worker.busy for worker in self._workers):
            self._on_progress()

    def describe_stall(self) -> str:
        """Which work does not go on; "" when all does, or there is none."""
        still = io_progress.seconds_since_progress()
        stuck = [worker.name for worker in self._workers if worker.busy]
        if not stuck or still < self._limit:
            return ""
        return f"the agent (pid {os.getpid()}) has made no progress for {still:.0f} s, busy with: {', '.join(stuck)}"
