"""A control group per machine, in every hierarchy that the host has: cgroup v1, v2, or both side by side.

All machines of a rehearsal live below one group, so "every process that we started" is a question the kernel answers.
With v1 the group also carries the device policy, which nobody else sets for an unregistered machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.system.mountinfo import parse_mountinfo, read_mountinfo
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import by_descriptor

UNIFIED_ONLY = 258
"""systemd from here on does not boot with cgroup v1."""
V1_CONTROLLERS = ("name=systemd", "memory", "freezer", "pids", "devices")
ALLOWED_DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:1", "5:2", "136:*", "10:229")
"""null zero full random urandom tty console ptmx, pseudo terminals, fuse."""


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy. `kind`: "v2", or the v1 controller's name."""

    kind: str
    mount: Path


def mounted_hierarchies(mountinfo_text: str = "") -> list[Hierarchy]:
    """Return the mounted hierarchies in which machines get a group.

    `mountinfo`: text of /proc/self/mountinfo, read when empty.
    """
    by_kind: dict[str, Hierarchy] = {}
    for entry in parse_mountinfo(mountinfo_text or read_mountinfo()):
        if entry.fs_type == "cgroup2":
            by_kind.setdefault("v2", Hierarchy("v2", Path(entry.path)))
        elif entry.fs_type == "cgroup":
            for controller in entry.options:
                if controller in V1_CONTROLLERS:
                    by_kind.setdefault(controller, Hierarchy(controller, Path(entry.path)))
    return list(by_kind.values())


def systemd_requires_cgroup_v2(root: Path) -> bool:
    """Whether the systemd below `root` boots in a v2 hierarchy alone; one without controllers is enough for it."""
    matches = [
        re.fullmatch(r"libsystemd-shared-(\d+)\.so", file.name)
        for directory in ("usr/lib/systemd", "usr/lib/*/systemd")
        for file in root.glob(f"{directory}/libsystemd-shared-*.so")
    ]
    return any(match and int(match.group(1)) >= UNIFIED_ONLY for match in matches)


def create_cgroup_in_every_hierarchy(path: str, hierarchies: Iterable[Hierarchy] | None = None) -> list[Path]:
    """Make the group `path` ("hyperpod-kit/ab12/i-…") in every hierarchy and return the directories to join.

    Raises RehearsalError when there is no hierarchy or it cannot be written.
    """
    directories: list[Path] = []
    try:
        for hierarchy in mounted_hierarchies() if hierarchies is None else hierarchies:
            directory = hierarchy.mount / path
            by_descriptor.make_directories(directory, shared=True)
            directories.append(directory)
            if hierarchy.kind == "devices":
                by_descriptor.write_text(directory / "devices.deny", "a")
                for device in ALLOWED_DEVICES:
                    by_descriptor.write_text(directory / "devices.allow", f"c {device} rwm")
            elif hierarchy.kind == "v2":
                _enable_controllers(hierarchy.mount, path)
    except OSError as err:
        raise RehearsalError(f"cannot make a control group for a machine: {err}") from err
    if not directories:
        raise RehearsalError("no control group hierarchy is mounted under /sys/fs/cgroup")
    return directories


def _enable_controllers(mount: Path, path: str) -> None:
    """Pass memory and pids down to the machine's group where the host has them in v2."""
    directory = mount
    for part in Path(path).parts:
        controllers = (directory / "cgroup.controllers").read_text().split()
        for controller in ("memory", "pids", "cpu"):
            if controller in controllers:
                # The root of a delegated subtree may refuse: accounting is a comfort, not a condition.
                with contextlib.suppress(OSError):
                    by_descriptor.write_text(directory / "cgroup.subtree_control", f"+{controller}")
        directory = directory / part


def _existing_directories(path: str) -> list[Path]:
    return [hierarchy.mount / path for hierarchy in mounted_hierarchies() if (hierarchy.mount / path).is_dir()]


def member_pids(path: str) -> set[int]:
    """Pids of all processes in the group and below."""
    pids: set[int] = set()
    for top in _existing_directories(path):
        for directory, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                pids.update(int(line) for line in Path(directory, "cgroup.procs").read_text().split())
    return pids - {0}


def set_group_frozen(path: str, frozen: bool) -> None:
    """Freeze or thaw every process of the group: seen from outside, a frozen machine hangs.

    A group below that the machine's own Slurm has frozen is not thawed: see `kill_members`.
    """
    for hierarchy in mounted_hierarchies():
        _write_frozen_state(hierarchy.kind, hierarchy.mount / path, frozen)


def _write_frozen_state(kind: str, directory: Path, frozen: bool) -> None:
    with contextlib.suppress(OSError):
        if kind == "freezer":
            by_descriptor.write_text(directory / "freezer.state", "FROZEN" if frozen else "THAWED")
        elif kind == "v2":
            by_descriptor.write_text(directory / "cgroup.freeze", "1" if frozen else "0")


def kill_members(path: str, seconds: float = 10.0) -> bool:
    """SIGKILL everything in the group until nothing is left; False when something is after `seconds`."""
    if not _existing_directories(path):
        return True
    mounted = mounted_hierarchies()

    def kill_remaining() -> bool:
        for hierarchy in mounted:  # a frozen process of v1 does not die
            for directory, _, _ in os.walk(hierarchy.mount / path):
                _write_frozen_state(hierarchy.kind, Path(directory), False)
        pids = member_pids(path) - {os.getpid()}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    return poll_until(kill_remaining, bool, fixed_pause(0.02), seconds=seconds)


def remove_group(path: str, seconds: float = 5.0) -> bool:
    """Remove the group and all below it; it takes a few tries after a SIGKILL. False when one stays."""

    def try_to_remove() -> bool:
        tops = _existing_directories(path)
        for top in tops:
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    by_descriptor.remove_directory(directory)
        return not any(top.is_dir() for top in tops)

    return poll_until(try_to_remove, bool, fixed_pause(0.02), seconds=seconds)


def child_group_names(path: str) -> set[str]:
    """Names of the direct sub-groups of `path` over all hierarchies."""
    names: set[str] = set()
    for top in _existing_directories(path):
        names.update(entry.name for entry in top.iterdir() if entry.is_dir())
    return names
