"""When a place whose machines die again and again is given its next one. Pure: no clock, no machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Tuple

from hyperpod_kit.system.wait import BackOff

PAUSES = BackOff(5.0, 300.0)
"""Seconds from one try to the next."""

STEADY = 60.0
"""Seconds after its boot at which a machine that ran counts as one that had come up well."""


@dataclass
class NodeBackOff:
    """Counts tries per place ("cluster id/group/index"). Use from one thread."""

    _tries: Dict[str, Tuple[int, float]] = field(default_factory=dict)

    def is_steady(self, uptime: float) -> bool:
        """Return whether a machine that ran for `uptime` seconds counts as one that had come up well."""
        return uptime >= STEADY

    def consecutive_tries(self, node_key: str) -> int:
        """Return the number of tries in a row that did not last."""
        return self._tries.get(node_key, (0, 0.0))[0]

    def next_try_at(self, node_key: str, was_steady: bool) -> float:
        """Time (same clock as `record_try`) from which the place may be given a machine; 0 when it may at once."""
        count, last = self._tries.get(node_key, (0, 0.0))
        if was_steady or not count:
            return 0.0
        return last + PAUSES.pause_seconds(count)

    def record_try(self, node_key: str, now: float, was_steady: bool) -> None:
        """Record a try. `was_steady`: the machine before had come up well, so that this is the first in a row."""
        self._tries[node_key] = (1 if was_steady else self.consecutive_tries(node_key) + 1, now)
