"""Is that process still the one we mean? A pid alone can be reused, a pid with its start time cannot.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import signal
from typing import Callable, NamedTuple, Optional

_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    """One process. `started`: clock ticks from boot to its start, field 22 of /proc/PID/stat."""

    pid: int
    started: int


def identify(pid: int, proc: str = "/proc") -> Optional[Process]:
    """The process with that pid, None when there is none or it is a zombie. Raises OSError."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19]))


def alive(process: Optional[Process]) -> bool:
    """Whether this very process still runs."""
    return process is not None and identify(process.pid) == process


def myself() -> Process:
    """This process."""
    found = identify(os.getpid())
    if found is None:
        raise RuntimeError("/proc does not show this process")
    return found


def uid_of(pid: int) -> Optional[int]:
    """The user that a process acts as, None when there is none."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[2]) for line in file if line.startswith(b"Uid:")), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def dies_with(parent: int) -> Callable[[], None]:
    """What a process calls to be killed when the thread of `parent` that started it has ended; `preexec_fn` too."""
    import ctypes  # dear to the programs that only identify

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arm
