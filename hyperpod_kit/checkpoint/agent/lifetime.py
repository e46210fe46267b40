"""How near an agent is to its end."""

from __future__ import annotations

import os
import time
from typing import Optional

from hyperpod_kit.environment import HPK_AGENT_LINGER


class Lifetime:
    """`closing`: the trainer has said that no save will come. `bye`: rank 0's agent has nothing more to do.

    `stop`: leave everything as it is, and go.
    """

    def __init__(self) -> None:
        self._linger = float(os.environ.get(HPK_AGENT_LINGER, "600"))
        self._trainer_gone_at: Optional[float] = None
        self.closing = self.bye = self.stop = False

    def trainer_gone(self) -> None:
        """From now on nobody trains here."""
        self._trainer_gone_at = time.monotonic()

    @property
    def alone(self) -> bool:
        """No capture will come any more."""
        return self._trainer_gone_at is not None

    @property
    def abandoned(self) -> bool:
        """The trainer has died; it did not close."""
        return self.alone and not self.closing

    @property
    def lingered(self) -> bool:
        """What nobody works at any more is waited for no longer."""
        return self._trainer_gone_at is not None and time.monotonic() - self._trainer_gone_at > self._linger
