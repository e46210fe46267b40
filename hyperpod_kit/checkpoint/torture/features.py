"""What the Manager at hand can do, so that the torture uses all of it."""

from __future__ import annotations

import inspect
from typing import Any

from hyperpod_kit.checkpoint.manager import Manager


def options(**wanted: Any) -> tuple[tuple[str, Any], ...]:
    """Those of the wanted Manager arguments that it has."""
    known = inspect.signature(Manager.__init__).parameters
    return tuple((name, value) for name, value in wanted.items() if name in known)
