"""What the Manager at hand can do, so that the torture uses all of it."""

from __future__ import annotations

import inspect
import random
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.repository import policy


def options(dice: random.Random, disk: Path) -> tuple[tuple[str, Any], ...]:
    """Arguments for a Manager: always little retention, sometimes a node-local tier below `disk`, overlapped copies."""
    wanted: dict[str, Any] = {"keep": policy.Latest(2), "overlap": dice.random() < 0.4}
    if dice.random() < 0.3:
        wanted["local"] = str(disk)
    known = inspect.signature(Manager.__init__).parameters
    return tuple((name, value) for name, value in wanted.items() if name in known)
