"""When a process was started, as the kernel has it."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_STARTED = 19
"""Of the fields of /proc/PID/stat behind the command's name."""


def started(pid: int) -> float:
    """Unix seconds. Raises OSError for one that is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[_STARTED]) / _TICKS
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
