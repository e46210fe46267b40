"""Wait for something to read on descriptors of any number, and read what comes, with a bound.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import os
import select
import time
from typing import Sequence, Tuple


def wait_until_readable(descriptors: Sequence[int], seconds: float) -> bool:
    """Wait at most `seconds` until one of the descriptors can be read or is at its end; return whether one is.

    Uses poll(2), because select(2) refuses descriptors above 1023, which a process with many connections
    has.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(math.ceil(max(0.0, seconds) * 1000)))


def read_to_end(descriptor: int, end: float, largest: float = math.inf) -> Tuple[bytes, bool, bool]:
    """Read until the writer has closed, until the moment `end` of the monotonic clock or more than `largest` bytes.

    Returns (the bytes, none where there were more; whether its writer has closed it; whether there were not more).
    """
    data = b""
    while True:
        remaining = end - time.monotonic()
        if remaining <= 0 or not wait_until_readable([descriptor], remaining):
            return data, False, True
        part = os.read(descriptor, 65536)
        if not part:
            return data, True, True
        data += part
        if len(data) > largest:
            return b"", False, False
