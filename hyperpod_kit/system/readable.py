"""Wait for something to read on descriptors of any number.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math
import select
from typing import Sequence


def readable(descriptors: Sequence[int], seconds: float) -> bool:
    """Whether one of them can be read within `seconds`, an end included.

    poll(2), because select(2) refuses descriptors above 1023, which a process with many connections has.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(math.ceil(max(0.0, seconds) * 1000)))
