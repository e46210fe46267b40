"""When this process last moved any byte of a capture: whether long work goes on or hangs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time

_at = [time.monotonic()]


def record_progress() -> None:
    """Record that a byte was moved just now. May be called from any thread."""
    _at[0] = time.monotonic()


def seconds_since_progress() -> float:
    """Return the seconds since progress was last recorded."""
    return time.monotonic() - _at[0]
