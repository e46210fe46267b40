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
from hyperpod_kit.system.mountinfo import parse_mountinfo, read_mountinfo
from hyperpod_kit.system.process import Process, identify_unless_gone_or_zombie
from hyperpod_rehearsal import targets
from hyperpod_rehearsal.machines import cgroups, processes
from hyperpod_rehearsal.machines.machine import command_in_machine
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.records.layout import Layout
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

    def run_in_machine(self, *argv: str) -> str:
        """Run a command inside the machine; its standard output. Raises RunError."""
        return self.runner.run(command_in_machine(self.leader, argv), timeout=60).stdout

    def top_mount_type_and_source(self) -> Optional[List[str]]:
        """[file system type, source] of what is on top there, None for nothing."""
        entries = [
            entry
            for entry in parse_mountinfo(read_mountinfo(f"/proc/{self.leader}/mountinfo"))
            if entry.path == self.path
        ]
        if entries:
            return [entries[-1].fs_type, entries[-1].source]
        return None

    def find_serving_process(self) -> Optional[Process]:
        """The process that serves the mount, the youngest one; None where the kernel alone does."""
        servers: List[Process] = []
        for pid in cgroups.member_pids(f"{self.layout.cgroup}/{self.node['instance_id']}"):
            process = identify_unless_gone_or_zombie(pid)
            if process is not None and self._is_served_by(pid):
                servers.append(process)
        return max(servers, key=lambda process: (process.started, process.pid), default=None)

    def _is_served_by(self, pid: int) -> bool:
        arguments = command_line(pid)
        return any(word.strip("/") == str(LIBRARY) for word in arguments[:5]) and self.path in arguments[5:]

    def require_serving_process(self) -> Process:
        """Return the process that serves the mount.

        Raises RehearsalError that says what is mounted when there is none.
        """
        server = self.find_serving_process()
        if server is None:
            mounted = self.top_mount_type_and_source()
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


def mount_point_of_running_node(
    layout: Layout, node: Dict[str, Any], path: str, runner: Optional[Runner] = None
) -> MountPoint:
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
    """Send SIGKILL to the mount's daemon: the kernel goes on listing the mount and returns ENOTCONN."""
    process = mount_point.require_serving_process()
    command = " ".join(command_line(process.pid)[4:6])
    processes.send_signal(process)
    return f"killed {command} (pid {process.pid} on this machine)"


def hang_daemon(mount_point: MountPoint) -> str:
    """Send SIGSTOP to the mount's daemon: every access to the mount blocks, as with an unreachable server."""
    process = mount_point.require_serving_process()
    processes.send_signal(process, signal.SIGSTOP)
    return f"stopped pid {process.pid} (of this machine)"


def resume_daemon(mount_point: MountPoint) -> str:
    process = mount_point.require_serving_process()
    processes.send_signal(process, signal.SIGCONT)
    return f"pid {process.pid} goes on"


def unmount(mount_point: MountPoint) -> str:
    """Detach the mount lazily, as an admin's `umount -l` does; an empty directory remains."""
    mount_point.run_in_machine("umount", "--lazy", mount_point.path)
    return "unmounted"


def remount_read_only(mount_point: MountPoint) -> str:
    # bind: the mount point alone; -i: no helper of the type is asked.
    mount_point.run_in_machine("mount", "-i", "-o", "remount,bind,ro", mount_point.path)
    return "remounted read-only"


def remount_read_write(mount_point: MountPoint) -> str:
    mount_point.run_in_machine("mount", "-i", "-o", "remount,bind,rw", mount_point.path)
    return "remounted read-write"


def replace_with_foreign_mount(mount_point: MountPoint) -> str:
    """Stop the mount's unit, unmount it, and mount another source of the same kind in its place."""
    mounted, process = mount_point.top_mount_type_and_source(), mount_point.find_serving_process()
    command = _foreign_mount_command_like(mounted, process, mount_point.path)
    unit = ""
    if process:
        unit = systemd_unit_of_process(process.pid)
    if unit:
        mount_point.run_in_machine("systemctl", "stop", unit)
    if mount_point.top_mount_type_and_source():
        mount_point.run_in_machine("umount", "--lazy", mount_point.path)
    _run_mount_command(mount_point, command)
    return f"now mounted there: {' '.join(command)}"


def cover_with_foreign_mount(mount_point: MountPoint) -> str:
    """Mount another source of the same kind over the mount, which goes on serving below."""
    mounted, process = mount_point.top_mount_type_and_source(), mount_point.find_serving_process()
    aside = ASIDE + mount_point.path
    command = _foreign_mount_command_like(mounted, process, aside)
    mount_point.run_in_machine("mkdir", "-p", aside)
    _run_mount_command(mount_point, command)
    mount_point.run_in_machine("mount", "--bind", aside, mount_point.path)
    return f"now on top of it: {' '.join(command)}"


def remove_covering_mount(mount_point: MountPoint) -> str:
    mount_point.run_in_machine("umount", mount_point.path)
    mount_point.run_in_machine("umount", ASIDE + mount_point.path)
    return "uncovered"


def _run_mount_command(mount_point: MountPoint, command: List[str]) -> None:
    # In a unit of its own, so that the daemon belongs to the machine; it outlives the command that started it.
    mount_point.run_in_machine(
        "systemd-run",
        "--quiet",
        "--wait",
        "--collect",
        "--property=Type=oneshot",
        "--property=KillMode=process",
        *command,
    )


def systemd_unit_of_process(pid: int) -> str:
    """The service whose control group a process of a machine is in, "" for none."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
    match = re.search(r"/([^/\n]+\.service)\s*$", groups, re.M)
    if match:
        return match[1]
    return ""


def _foreign_mount_command_like(mounted: Optional[List[str]], server: Optional[Process], path: str) -> List[str]:
    """Return the command that mounts another source of the same kind as the given mount at `path`.

    `mounted`, `server`: file system type, source and process of the present mount.
    """
    fs_type = ""
    if mounted:
        fs_type = mounted[0]
    serving: List[str] = []
    if server:
        serving = command_line(server.pid)
    return foreign_mount_command(fs_type, serving, path)


def foreign_mount_command(fs_type: str, server_command_line: List[str], path: str) -> List[str]:
    """Return the command that mounts something else of the same kind at `path`.

    `serving`: words of the present server's command line.
    """
    for rehearsed_mount in REHEARSED.values():
        command = rehearsed_mount.substitute_command(fs_type, server_command_line)
        if command is not None:
            return [*command, path]
    return ["/usr/bin/mount", "-t", "tmpfs", "somebody-elses", path]


FAULTS: Dict[str, Callable[[MountPoint], str]] = {
    "kill-daemon": kill_daemon,
    "hang-daemon": hang_daemon,
    "unmount": unmount,
    "read-only": remount_read_only,
    "other-target": replace_with_foreign_mount,
    "cover": cover_with_foreign_mount,
}

UNDO: Dict[str, Callable[[MountPoint], str]] = {
    "hang-daemon": resume_daemon,
    "read-only": remount_read_write,
    "other-target": unmount,
    "cover": remove_covering_mount,
}
"""What takes a fault back where nothing on the node does so by itself."""
