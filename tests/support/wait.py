"""Waiting for what other processes and threads bring about."""

from __future__ import annotations

import time
from typing import Callable, Optional, TypeVar

T = TypeVar("T")


def until(condition: Callable[[], Optional[T]], timeout: float = 60.0, *, what: str = "") -> T:
    """What `condition` gives, once it gives something true. `what` is named when it does not within `timeout` seconds.

    The timeout is for what never comes: long enough for a machine that is busy with something else.
    """
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"no {what or 'such thing'} within {timeout:g} s"
        time.sleep(0.02)
