"""Is that process still the one we mean? A pid alone can be reused, a pid with its start time cannot."""

from __future__ import annotations

import os
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


def myself() -> Owner:
    """This process."""
    found = owner_of(os.getpid())
    if found is None:
        raise RuntimeError("/proc does not show this process")
    return found


def alive(owner: Owner) -> bool:
    return owner_of(owner.pid) == owner
