"""What a check of a mount found.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod_kit.model.states import SERVES, MountState


@dataclass(frozen=True)
class MountStatus:
    """What one check of one mount found. `source`: what is mounted there; `checked_at`: Unix seconds."""

    name: str
    kind: str
    path: str
    state: MountState
    source: str = ""
    detail: str = ""
    latency_ms: float = 0.0
    required: bool = True
    checked_at: float = 0.0

    @property
    def healthy(self) -> bool:
        """Whether a job may use the mount."""
        return self.state in SERVES
