"""Processes by identity: a pid together with its start time, because pids are used again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Process:
    """One process. `started`: clock ticks after boot, field 22 of /proc/PID/stat."""

    pid: int
    started: int


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def identify(pid: int) -> Optional[Process]:
    """Identity of a running process, None when there is none of that pid."""
    fields = _stat_fields(pid)
    return Process(pid, int(fields[19])) if fields else None


def alive(process: Optional[Process]) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    if process is None:
        return False
    fields = _stat_fields(process.pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == process.started


def children(pid: int) -> list[int]:
    """Direct children, in order of birth; empty when the process is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def end(process: Optional[Process], sig: int = signal.SIGKILL) -> None:
    """Send a signal to this very process; nothing happens when it is gone."""
    if process is not None and alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, sig)


def wait_gone(process: Optional[Process], seconds: float) -> bool:
    """Wait until the process is gone; False when it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
