"""Wait for something to read on descriptors of any number.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import select
from typing import Sequence


def wait_until_readable(descriptors: Sequence[int], seconds: float) -> bool:
    """Wait at most `seconds` until one of the descriptors can be read or is at its end; return whether one is.

    Uses poll(2), because select(2) refuses descriptors above 1023, which a process with many connections
    has.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(math.ceil(max(0.0, seconds) * 1000)))
