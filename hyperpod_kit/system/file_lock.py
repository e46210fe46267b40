"""flock(2): the kernel releases it when the last process that has the file open is gone, whatever it dies of.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import fcntl
import time
from typing import Callable

from hyperpod_kit.system.wait import BackOff, poll_until


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Take the lock without waiting; return whether this descriptor has it now. Raises OSError."""
    operation = fcntl.LOCK_EX
    if shared:
        operation = fcntl.LOCK_SH
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def lock_exclusively_within(
    handle: int,
    seconds: float,
    pauses: BackOff,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Try to take the lock until `seconds` are over; return whether this descriptor has it now."""
    return poll_until(lambda: try_lock(handle), bool, pauses, seconds=seconds, clock=clock, sleep=sleep)
