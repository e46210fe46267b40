"""Faults of one mount of a running node, made from outside it: what `rehearse break-mount` does.

A fault knows nothing of who made the mount: it finds the process that serves it, signals it, or mounts something else.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import LocalRunner, Runner
from hyperpod_kit.system.mountinfo import parse, read
from hyperpod_kit.system.process import Process, identify
from hyperpod_rehearsal import cgroups, processes, targets
from hyperpod_rehearsal.layout import Layout
from hyperpod_rehearsal.machine import inside
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.standins.install import LIBRARY

ASIDE = "/run/hyperpod-rehearsal/aside"
"""Where a node keeps what lies over another mount."""


@dataclass(frozen=True)
class Spot:
    """One mount point of one node. `node`: its entry in state.json; `leader`: host pid of the machine's PID 1."""

    layout: Layout
    node: Dict[str, Any]
    leader: int
    path: str
    runner: Runner

    def run(self, *argv: str) -> str:
        """Run a command inside the machine; its standard output. Raises RunError."""
        return self.runner.run(inside(self.leader, argv), timeout=60).stdout

    def mounted(self) -> Optional[List[str]]:
        """[file system type, source] of what is on top there, None for nothing."""
        there = [entry for entry in parse(read(f"/proc/{self.leader}/mountinfo")) if entry.path == self.path]
        return [there[-1].fs_type, there[-1].source] if there else None

    def server(self) -> Optional[Process]:
        """The process that serves the mount, the youngest one; None where the kernel alone does."""
        found: List[Process] = []
        for pid in cgroups.members(f"{self.layout.cgroup}/{self.node['instance_id']}"):
            process = identify(pid)
            if process is not None and self._serves(pid):
                found.append(process)
        return max(found, key=lambda process: (process.started, process.pid), default=None)

    def _serves(self, pid: int) -> bool:
        words = command_line(pid)
        return any(word.strip("/") == str(LIBRARY) for word in words[:5]) and self.path in words[5:]

    def require_server(self) -> Process:
        """The same, or RehearsalError that says what is there."""
        found = self.server()
        if found is None:
            there = self.mounted()
            what = f"{there[0]} from {there[1]}, which no process serves" if there else "nothing"
            raise RehearsalError(f"no process to signal: mounted at {self.path} of {self.node['place']} is {what}")
        return found


def command_line(pid: int) -> List[str]:
    """Words of a process's command line, none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def spot(layout: Layout, node: Dict[str, Any], path: str, runner: Optional[Runner] = None) -> Spot:
    """The mount point `path` of a running node. Raises RehearsalError when its machine does not run."""
    leaders = processes.children(node["pid"]) if targets.is_running(node) else []
    if not leaders:
        raise RehearsalError(
            f"{node['place']} ({node['instance_id']}) does not run", hint="hyperpod-kit rehearse status"
        )
    return Spot(layout, node, leaders[0], os.path.normpath(path), runner or LocalRunner())


def kill_daemon(at: Spot) -> str:
    """SIGKILL: the kernel goes on listing the mount, and answers ENOTCONN."""
    process = at.require_server()
    words = " ".join(command_line(process.pid)[4:6])
    processes.end(process)
    return f"killed {words} (pid {process.pid} on this machine)"


def hang_daemon(at: Spot) -> str:
    """SIGSTOP: whoever touches the mount waits, as for a server that has gone away."""
    process = at.require_server()
    processes.end(process, signal.SIGSTOP)
    return f"stopped pid {process.pid} (of this machine)"


def resume_daemon(at: Spot) -> str:
    process = at.require_server()
    processes.end(process, signal.SIGCONT)
    return f"pid {process.pid} goes on"


def unmount(at: Spot) -> str:
    """What an admin's `umount -l` leaves: an empty directory."""
    at.run("umount", "--lazy", at.path)
    return "unmounted"


def read_only(at: Spot) -> str:
    # bind: the mount point alone; -i: no helper of the type is asked.
    at.run("mount", "-i", "-o", "remount,bind,ro", at.path)
    return "remounted read-only"


def read_write(at: Spot) -> str:
    at.run("mount", "-i", "-o", "remount,bind,rw", at.path)
    return "remounted read-write"


def other_target(at: Spot) -> str:
    """Another source of the same kind in its place, as by an admin's hand: the unit stopped, unmounted, mounted."""
    there, process = at.mounted(), at.server()
    command = foreign_mount(there[0] if there else "", command_line(process.pid) if process else [], at.path)
    unit = unit_of(process.pid) if process else ""
    if unit:
        at.run("systemctl", "stop", unit)
    if at.mounted():
        at.run("umount", "--lazy", at.path)
    _mount(at, command)
    return f"now mounted there: {' '.join(command)}"


def cover(at: Spot) -> str:
    """Another source of the same kind laid over the mount, which serves on below."""
    there, process = at.mounted(), at.server()
    aside = ASIDE + at.path
    command = foreign_mount(there[0] if there else "", command_line(process.pid) if process else [], aside)
    at.run("mkdir", "-p", aside)
    _mount(at, command)
    at.run("mount", "--bind", aside, at.path)
    return f"now on top of it: {' '.join(command)}"


def uncover(at: Spot) -> str:
    at.run("umount", at.path)
    at.run("umount", ASIDE + at.path)
    return "uncovered"


def _mount(at: Spot, command: List[str]) -> None:
    # In a unit of its own, so that the daemon belongs to the machine; it outlives the command that started it.
    at.run(
        "systemd-run",
        "--quiet",
        "--wait",
        "--collect",
        "--property=Type=oneshot",
        "--property=KillMode=process",
        *command,
    )


def unit_of(pid: int) -> str:
    """The service whose control group a process of a machine is in, "" for none."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
    found = re.search(r"/([^/\n]+\.service)\s*$", groups, re.M)
    return found[1] if found else ""


def foreign_mount(fs_type: str, serving: List[str], path: str) -> List[str]:
    """A command that mounts something else of the same kind at `path`. `serving`: words of the present server."""
    for its in REHEARSED.values():
        command = its.another(fs_type, serving)
        if command is not None:
            return [*command, path]
    return ["/usr/bin/mount", "-t", "tmpfs", "somebody-elses", path]


FAULTS: Dict[str, Callable[[Spot], str]] = {
    "kill-daemon": kill_daemon,
    "hang-daemon": hang_daemon,
    "unmount": unmount,
    "read-only": read_only,
    "other-target": other_target,
    "cover": cover,
}

UNDO: Dict[str, Callable[[Spot], str]] = {
    "hang-daemon": resume_daemon,
    "read-only": read_write,
    "other-target": unmount,
    "cover": uncover,
}
"""What takes a fault back where nothing on the node does so by itself."""
