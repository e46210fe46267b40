"""Make a mount be there: what the mount units run at boot, at creation and for a repair.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mounts import Mount, MountStatus, mount_to_dict
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_json
from hyperpod_kit.node.health.look import check
from hyperpod_kit.node.homes import make_mount_point
from hyperpod_kit.node.locks import held
from hyperpod_kit.node.mounts.kinds import kind_of
from hyperpod_kit.node.mounts.table import find
from hyperpod_kit.node.timing import wait_for

MOUNT_WITHIN = 120.0
"""Seconds in which a mount must succeed: names may not resolve yet, an access point may be seconds old."""

COMMAND_SECONDS = 45.0
"""Longest that one run of the mount helper may take."""


def clear_dead(node: Node, mount: Mount) -> bool:
    """Detach what is left of a dead mount at the path; True when something was. A living mount is never touched."""
    cleared = False
    for _ in range(8):  # dead mounts can lie one above the other
        if check(node, mount).state != "stale":
            break
        node.runner.run(["umount", "--lazy", mount.path], timeout=30)
        cleared = True
    return cleared


def prepare(node: Node, mount: Mount) -> None:
    """Make the path ready for a daemon that is about to mount there. Raises MountFailed when something lives there."""
    with held(node, f"{mount.name}.mount", seconds=30) as mine:
        if not mine:
            raise MountFailed(f"{mount.name}: another process has been working on this mount for 30 s")
        clear_dead(node, mount)
        status = check(node, mount)
        if status.state != "absent":
            raise MountFailed(f"{mount.name}: {mount.path} is taken by {status.source}: {status.detail}",
                              hint=f"findmnt {mount.path}")
        make_mount_point(node, mount)


def await_healthy(node: Node, mount: Mount, *, seconds: float) -> MountStatus:
    """Wait until the mount answers. Raises MountFailed with the last state after `seconds`."""
    last = [check(node, mount)]

    def look() -> Optional[MountStatus]:
        last[0] = check(node, mount)
        return last[0] if last[0].healthy else None

    found = last[0] if last[0].healthy else wait_for(look, seconds=seconds, clock=node.clock, longest=1.0)
    if found is None:
        raise MountFailed(f"{mount.name}: {mount.path} is {last[0].state} after {seconds:g} s: {last[0].detail}",
                          hint=f"hyperpod-kit node mounts {mount.name}")
    return found


def ensure(node: Node, mount: Mount, *, seconds: float = MOUNT_WITHIN) -> bool:
    """Mount it unless it is mounted and answers; True when it was mounted now. For kinds that a command mounts.

    Raises MountFailed when something else is there, or after `seconds` of trying; the last error of the mount
    helper is in the message.
    """
    with held(node, f"{mount.name}.mount", seconds=30) as mine:
        if not mine:
            raise MountFailed(f"{mount.name}: another process has been working on this mount for 30 s")
        clear_dead(node, mount)
        status = check(node, mount)
        if status.healthy:
            return False
        if status.state != "absent":
            raise MountFailed(f"{mount.name}: {mount.path} is {status.state} ({status.source}): {status.detail}",
                              hint=f"findmnt {mount.path}")
        make_mount_point(node, mount)
        said = [""]

        def attempt() -> Optional[MountStatus]:
            try:
                node.runner.run(kind_of(mount).command(mount), timeout=COMMAND_SECONDS)
            except RunError as err:
                said[0] = err.message
            now = check(node, mount)
            return now if now.state != "absent" else None

        made = wait_for(attempt, seconds=seconds, clock=node.clock, first=1.0, longest=15.0)
        if made is None or not made.healthy:
            why = said[0] or (f"{made.state}: {made.detail}" if made else f"nothing is mounted at {mount.path}")
            raise MountFailed(f"{mount.name}: {why}", hint=f"on the node: {' '.join(kind_of(mount).command(mount))}")
        remember(node, mount)
        return True


def remember(node: Node, mount: Mount) -> None:
    """Note which kernel mount is ours and what it was made from: /proc does not say it for EFS."""
    entry = find(read_text(node.paths.mountinfo) or "", mount.path)
    if entry is not None:
        write_json(node.paths.mount_record(mount.name),
                   {"mount_id": entry.mount_id, "device": entry.device, "mount": mount_to_dict(mount)})
