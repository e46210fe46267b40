"""End what a rank's command leaves behind: it must not run on beside the next attempt's ranks.

podman and others detach the container from the command that was called; it stays below the wrapper all the same,
which takes the place of init for it. Slurm then finds it in the step, and the wrapper ends it with the command. Not so
with docker, whose containers are its daemon's. Without Slurm the wrapper ends every process that is left, such as the
workers of a torchrun that was killed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable, Dict, List, Set

MONITOR = "conmon"
"""The process above each container of podman's."""

_AGENT = b"agent_main"
"""In the arguments of an agent of checkpoints, which writes to storage what its trainer had captured."""

_PR_SET_CHILD_SUBREAPER = 36

_ROUNDS = 20


def become_reaper_of_orphans_below() -> None:
    """Make every orphan below this process its child from now on."""
    import ctypes  # slow to import, and most wrappers do not need it

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_podman_containers_below() -> int:
    """Send SIGKILL to podman's containers below this process until there is none, and return how many processes those
    were.

    The pause process, which podman keeps for all containers of its user, is left alone.
    """
    return _kill_until_none_is_left(_podman_container_pids)


def kill_all_but_agents_below(root: int = 0) -> int:
    """Send SIGKILL to every process below `root`, by default this one, until there is none but agents of checkpoints.

    Returns how many processes those were.
    """
    return _kill_until_none_is_left(lambda: _pids_but_agents_below(root or os.getpid()))


def _kill_until_none_is_left(list_pids: Callable[[], List[int]]) -> int:
    ended: Set[int] = set()
    for _ in range(_ROUNDS):
        remaining_pids = [pid for pid in list_pids() if pid not in ended]
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


def _pids_but_agents_below(root: int) -> List[int]:
    pids = below(root)
    spared: Set[int] = set()
    for agent in filter(_is_agent, pids):
        spared.update((agent, *below(agent)))
    return [pid for pid in pids if pid not in spared]


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return any(word.rpartition(b".")[2] == _AGENT for word in file.read().split(b"\0"))
    except OSError:
        return False


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
