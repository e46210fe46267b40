"""How near an agent is to its end."""

from __future__ import annotations

import os
import time

from hyperpod_kit.environment import HPK_AGENT_LINGER


class Lifetime:
    """`is_closing`: the trainer has said that no save will come. `is_shutdown_ordered`: rank 0's agent has nothing more
    to do.

    `is_stop_requested`: leave everything as it is, and go.
    """

    def __init__(self) -> None:
        self._linger = float(os.environ.get(HPK_AGENT_LINGER, "600"))
        self._last_event_at = 0.0
        self._has_trainer_ended = False
        self.is_closing = self.is_shutdown_ordered = self.is_stop_requested = False

    def set_trainer_ended(self) -> None:
        """From now on nobody trains here."""
        self._has_trainer_ended = True
        self.record_event()

    def record_event(self) -> None:
        """Something has happened: the time that the agent lingers begins anew."""
        self._last_event_at = time.monotonic()

    @property
    def has_trainer_ended(self) -> bool:
        """No capture will come any more."""
        return self._has_trainer_ended

    @property
    def has_trainer_died(self) -> bool:
        """The trainer has died; it did not close."""
        return self.has_trainer_ended and not self.is_closing

    @property
    def is_linger_over(self) -> bool:
        """What nobody works at any more is waited for no longer."""
        return self._has_trainer_ended and time.monotonic() - self._last_event_at > self._linger
