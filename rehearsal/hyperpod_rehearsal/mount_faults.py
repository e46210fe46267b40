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
from hyperpod_rehearsal.machine import command_in_machine
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.standins.install import LIBRARY

ASIDE = "/run/hyperpod-rehearsal/aside"
"""Where a node keeps what lies over another mount."""


@dataclass(frozen=True)
class MountPoint:
    """One mount point of one node. `node`: its entry in state.json; `leader`: host pid of the machine's PID 1."""

    layout: Layout
    node: Dict[str, Any]
    leader: int
    path: str
    runner: Runner

    def run(self, *argv: str) -> str:
        """Run a command inside the machine; its standard output. Raises RunError."""
        return self.runner.run(command_in_machine(self.leader, argv), timeout=60).stdout

    def mounted(self) -> Optional[List[str]]:
        """[file system type, source] of what is on top there, None for nothing."""
        entries = [entry for entry in parse(read(f"/proc/{self.leader}/mountinfo")) if entry.path == self.path]
        if entries:
            return [entries[-1].fs_type, entries[-1].source]
        return None

    def server(self) -> Optional[Process]:
        """The process that serves the mount, the youngest one; None where the kernel alone does."""
        servers: List[Process] = []
        for pid in cgroups.members(f"{self.layout.cgroup}/{self.node['instance_id']}"):
            process = identify(pid)
            if process is not None and self._serves(pid):
                servers.append(process)
        return max(servers, key=lambda process: (process.started, process.pid), default=None)

    def _serves(self, pid: int) -> bool:
        arguments = command_line(pid)
        return any(word.strip("/") == str(LIBRARY) for word in arguments[:5]) and self.path in arguments[5:]

    def require_server(self) -> Process:
        """The same, or RehearsalError that says what is there."""
        server = self.server()
        if server is None:
            mounted = self.mounted()
            what = "nothing"
            if mounted:
                what = f"{mounted[0]} from {mounted[1]}, which no process serves"
            raise RehearsalError(f"no process to signal: mounted at {self.path} of {self.node['place']} is {what}")
        return server


def command_line(pid: int) -> List[str]:
    """Words of a process's command line, none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def find_mount_point(layout: Layout, node: Dict[str, Any], path: str, runner: Optional[Runner] = None) -> MountPoint:
    """The mount point `path` of a running node. Raises RehearsalError when its machine does not run."""
    if targets.is_running(node):
        leaders = processes.children(node["pid"])
    else:
        leaders = []
    if not leaders:
        raise RehearsalError(
            f"{node['place']} ({node['instance_id']}) does not run", hint="hyperpod-kit rehearse status"
        )
    return MountPoint(layout, node, leaders[0], os.path.normpath(path), runner or LocalRunner())


def kill_daemon(mount_point: MountPoint) -> str:
    """SIGKILL: the kernel goes on listing the mount, and answers ENOTCONN."""
    process = mount_point.require_server()
    command = " ".join(command_line(process.pid)[4:6])
    processes.send_signal(process)
    return f"killed {command} (pid {process.pid} on this machine)"


def hang_daemon(mount_point: MountPoint) -> str:
    """SIGSTOP: whoever touches the mount waits, as for a server that has gone away."""
    process = mount_point.require_server()
    processes.send_signal(process, signal.SIGSTOP)
    return f"stopped pid {process.pid} (of this machine)"


def resume_daemon(mount_point: MountPoint) -> str:
    process = mount_point.require_server()
    processes.send_signal(process, signal.SIGCONT)
    return f"pid {process.pid} goes on"


def unmount(mount_point: MountPoint) -> str:
    """What an admin's `umount -l` leaves: an empty directory."""
    mount_point.run("umount", "--lazy", mount_point.path)
    return "unmounted"


def read_only(mount_point: MountPoint) -> str:
    # bind: the mount point alone; -i: no helper of the type is asked.
    mount_point.run("mount", "-i", "-o", "remount,bind,ro", mount_point.path)
    return "remounted read-only"


def read_write(mount_point: MountPoint) -> str:
    mount_point.run("mount", "-i", "-o", "remount,bind,rw", mount_point.path)
    return "remounted read-write"


def other_target(mount_point: MountPoint) -> str:
    """Another source of the same kind in its place, as by an admin's hand: the unit stopped, unmounted, mounted."""
    mounted, process = mount_point.mounted(), mount_point.server()
    command = _foreign_mount_over(mounted, process, mount_point.path)
    unit = ""
    if process:
        unit = unit_of(process.pid)
    if unit:
        mount_point.run("systemctl", "stop", unit)
    if mount_point.mounted():
        mount_point.run("umount", "--lazy", mount_point.path)
    _mount(mount_point, command)
    return f"now mounted there: {' '.join(command)}"


def cover(mount_point: MountPoint) -> str:
    """Another source of the same kind laid over the mount, which serves on below."""
    mounted, process = mount_point.mounted(), mount_point.server()
    aside = ASIDE + mount_point.path
    command = _foreign_mount_over(mounted, process, aside)
    mount_point.run("mkdir", "-p", aside)
    _mount(mount_point, command)
    mount_point.run("mount", "--bind", aside, mount_point.path)
    return f"now on top of it: {' '.join(command)}"


def uncover(mount_point: MountPoint) -> str:
    mount_point.run("umount", mount_point.path)
    mount_point.run("umount", ASIDE + mount_point.path)
    return "uncovered"


def _mount(mount_point: MountPoint, command: List[str]) -> None:
    # In a unit of its own, so that the daemon belongs to the machine; it outlives the command that started it.
    mount_point.run(
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
    match = re.search(r"/([^/\n]+\.service)\s*$", groups, re.M)
    if match:
        return match[1]
    return ""


def _foreign_mount_over(mounted: Optional[List[str]], server: Optional[Process], path: str) -> List[str]:
    """The command that mounts, at `path`, another source of the same kind as a mount. `mounted`, `server`: its own."""
    fs_type = ""
    if mounted:
        fs_type = mounted[0]
    serving: List[str] = []
    if server:
        serving = command_line(server.pid)
    return foreign_mount(fs_type, serving, path)


def foreign_mount(fs_type: str, serving: List[str], path: str) -> List[str]:
    """A command that mounts something else of the same kind at `path`. `serving`: words of the present server."""
    for rehearsed_mount in REHEARSED.values():
        command = rehearsed_mount.substitute_command(fs_type, serving)
        if command is not None:
            return [*command, path]
    return ["/usr/bin/mount", "-t", "tmpfs", "somebody-elses", path]


FAULTS: Dict[str, Callable[[MountPoint], str]] = {
    "kill-daemon": kill_daemon,
    "hang-daemon": hang_daemon,
    "unmount": unmount,
    "read-only": read_only,
    "other-target": other_target,
    "cover": cover,
}

UNDO: Dict[str, Callable[[MountPoint], str]] = {
    "hang-daemon": resume_daemon,
    "read-only": read_write,
    "other-target": unmount,
    "cover": uncover,
}
"""What takes a fault back where nothing on the node does so by itself."""
