"""End what a rank's command leaves behind: a container that it started must not run on beside the next attempt's.

podman and others detach the container from the command that was called; it stays below the wrapper all the same, which
takes the place of init for it. Slurm then finds it in the step, and the wrapper ends it with the command. Not so with
docker, whose containers are its daemon's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Dict, List

MONITOR = "conmon"
"""The process above each container of podman's."""

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper_of_orphans_below() -> None:
    """Make every orphan below this process its child from now on."""
    import ctypes  # slow to import, and most wrappers do not need it

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_podman_containers_below() -> int:
    """Send SIGKILL to podman's containers below this process until there is none, and return how many processes those
    were.

    The pause process, which podman keeps for all containers of its user, is left alone.
    """
    ended = set()
    for _ in range(20):
        remaining_pids = [pid for pid in _podman_container_pids() if pid not in ended]
        if not remaining_pids:
            break
        for pid in remaining_pids:
            ended.add(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return len(ended)


def _podman_container_pids() -> List[int]:
    """Return the processes of podman's containers below this process, the monitor of each after those below it."""
    monitors = [pid for pid in below(os.getpid()) if _name(pid) == MONITOR]
    container_pids: List[int] = []
    for monitor in monitors:
        container_pids += [*below(monitor), monitor]
    return container_pids


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def below(pid: int, proc: str = "/proc") -> List[int]:
    """Return all descendants of a process that still run."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    children.setdefault(int(fields[1]), []).append(int(name))
    descendant_pids, pending_pids = [], [pid]
    while pending_pids:
        new = children.pop(pending_pids.pop(), [])
        descendant_pids += new
        pending_pids += new
    return descendant_pids
