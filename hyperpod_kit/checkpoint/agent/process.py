"""Is that process still the one we mean? A pid alone can be reused, a pid with its start time cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from typing import NamedTuple, Optional


class Owner(NamedTuple):
    """A process: pid and its start time in clock ticks since boot, as this node's /proc tells it."""

    pid: int
    start: int


def owner_of(pid: int) -> Optional[Owner]:
    """The process with that pid, None when there is none or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Owner(pid, int(fields[19]))


def uid_of(pid: int) -> Optional[int]:
    """The user that a process acts as, None when there is none."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[2]) for line in file if line.startswith(b"Uid:")), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def myself() -> Owner:
    """This process."""
    found = owner_of(os.getpid())
    if found is None:
        raise RuntimeError("/proc does not show this process")
    return found


def alive(owner: Owner) -> bool:
    return owner_of(owner.pid) == owner


_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IO_LOWEST = (2 << 13) | 7
_NICE = 5


def be_gentle() -> None:
    """Leave processor and disk to training: a nice value and the lowest best-effort I/O priority, for all threads.

    Where the kernel groups tasks by session (sched_autogroup_enabled, the default of many distributions, outside a
    batch system's control groups) a process of its own session gets an equal share whatever its nice value is: there
    the group has one of its own (sched(7)).

    Python has no ioprio_set(2); where the call is not known (another architecture, a sandbox), nothing happens.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write(str(_NICE))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # IOPRIO_WHO_PROCESS is 1, and 0 means the calling thread.
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IO_LOWEST)
