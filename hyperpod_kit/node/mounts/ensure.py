"""Make a mount be there: what the mount units run at boot, at creation and for a repair.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional, Sequence

from hyperpod_kit import audit
from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import MOUNTED, MountState
from hyperpod_kit.model.units import systemd_escape_path
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.machine.timing import poll_until
from hyperpod_kit.node.mounts.homes import set_packet_rules_and_make_mount_point
from hyperpod_kit.node.mounts.kinds.mount_record import delete_record, record_current_mount_as_kits
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.mounts.protect import try_set_protective_flags
from hyperpod_kit.node.observe.check import check_mount

MOUNT_WITHIN = 120.0
"""Seconds in which a mount must succeed: names may not resolve yet, an access point may be seconds old."""

COMMAND_SECONDS = 45.0
"""Longest that one run of the mount helper may take."""


def detach_dead_mount(node: Node, mount: Mount) -> bool:
    """Detach what is left of a dead mount at the path; True when something was. A living mount is never touched.

    Raises RunError when it is still there.
    """
    cleared = False
    argv = ["umount", "--lazy", mount.path]
    for _ in range(8):  # dead mounts can lie one above the other
        if check_mount(node, mount).state != MountState.STALE:
            break
        done = node.runner.run(argv, timeout=30, check=False)
        # umount(8) of util-linux also fails after it has unmounted: "filesystem was unmounted, but any subsequent
        # operation failed". What is mounted now says more than its exit status.
        if done.returncode != 0 and check_mount(node, mount).state == MountState.STALE:
            raise RunError(argv, done.returncode, done.stdout, done.stderr)
        audit.record_root_action_in_journal(
            "unmounted",
            mount.path,
            "its daemon or server is gone, and every use of it returned errors",
            asked_by=f"mount {mount.name}",
            owner=mount.owner or "",
        )
        cleared = True
    return cleared


def clear_path_for_mount_daemon(node: Node, mount: Mount) -> None:
    """Make the path ready for a daemon that is about to mount there. Raises MountFailed when something lives there."""
    with hold_mount_lock_or_raise(node, mount):
        detach_dead_mount(node, mount)
        status = check_mount(node, mount)
        if status.state != MountState.ABSENT:
            raise MountFailed(
                f"{mount.name}: {mount.path} is taken by {status.source}: {status.detail}", hint=f"findmnt {mount.path}"
            )
        delete_record_and_prepare_mount_point(node, mount)


def await_mounted_or_raise(node: Node, mount: Mount, *, seconds: float) -> MountStatus:
    """Wait until the mount answers as ours. Raises MountFailed with the last state after `seconds`."""
    mount_status = poll_until(
        lambda: check_mount(node, mount),
        lambda status: status.state in MOUNTED,
        seconds=seconds,
        clock=node.clock,
        longest=1.0,
    )
    if mount_status.state not in MOUNTED:
        raise MountFailed(
            f"{mount.name}: {mount.path} is {mount_status.state} after {seconds:g} s: {mount_status.detail}",
            hint=f"hyperpod-kit node mounts {mount.name}",
        )
    return mount_status


def ensure_mounted(node: Node, mount: Mount, *, seconds: float = MOUNT_WITHIN) -> bool:
    """Mount it unless it is mounted and answers; True when it was mounted now. For kinds that a command mounts.

    What HyperPod mounts itself is only waited for. Raises MountFailed when something else is there, or after
    `seconds` of trying; the last error of the mount helper is in the message.
    """
    with hold_mount_lock_or_raise(node, mount):
        detach_dead_mount(node, mount)
        status = check_mount(node, mount)
        if status.state in MOUNTED:
            if not mount.platform:
                record_current_mount_as_kits(
                    node, mount
                )  # its maker was killed before it could, or somebody mounted the same by hand
            try_set_protective_flags(node, mount)
            return False
        if status.state != MountState.ABSENT:
            raise MountFailed(
                f"{mount.name}: {mount.path} is {status.state} ({status.source}): {status.detail}",
                hint=f"findmnt {mount.path}",
            )
        if mount.platform:
            start_and_await_platform_mount(node, mount)
            try_set_protective_flags(node, mount)
            return True
        delete_record_and_prepare_mount_point(node, mount)
        command = kind_of(mount).mount_command(node, mount)
        retry_mount_command_until_mounted(node, mount, command, seconds)
        try_set_protective_flags(node, mount)  # whatever the helper made of the options
        record_current_mount_as_kits(node, mount, command)
        return True


def retry_mount_command_until_mounted(node: Node, mount: Mount, command: Sequence[str], seconds: float) -> None:
    """Run the mount command again and again until something is mounted or `seconds` are over. Raises
    MountFailed unless it serves then."""
    error = ""

    def try_mount() -> MountStatus:
        nonlocal error
        try:
            node.runner.run(command, timeout=COMMAND_SECONDS)
        except RunError as err:
            error = err.message
        return check_mount(node, mount)

    mount_status = poll_until(
        try_mount, _is_something_mounted, seconds=seconds, clock=node.clock, first=1.0, longest=15.0
    )
    if mount_status.state not in MOUNTED:
        reason = f"nothing is mounted at {mount.path}"
        if _is_something_mounted(mount_status):
            reason = f"{mount_status.state}: {mount_status.detail}"
        if error:
            reason = error
        raise MountFailed(f"{mount.name}: {reason}", hint=f"on the node: {' '.join(command)}")


def _is_something_mounted(status: MountStatus) -> bool:
    return status.state != MountState.ABSENT


def start_and_await_platform_mount(node: Node, mount: Mount) -> None:
    """Wait for a mount of HyperPod's own, through its own unit where it has one. Raises MountFailed."""
    failed: Optional[MountFailed] = None

    def start_and_check() -> MountStatus:
        nonlocal failed
        try:
            start_platform_unit(node, mount)
        except MountFailed as err:  # names may not resolve yet
            failed = err
        return check_mount(node, mount)

    mount_status = poll_until(
        start_and_check, _is_something_mounted, seconds=PLATFORM_MOUNT_WITHIN, clock=node.clock, first=1.0, longest=10.0
    )
    if not _is_something_mounted(mount_status):
        raise failed or not_mounted_error(mount)
    if mount_status.state not in MOUNTED:
        raise MountFailed(
            f"{mount.name}: {mount.path} is {mount_status.state} ({mount_status.source}): {mount_status.detail}",
            hint=f"findmnt {mount.path}; InstanceStorageConfigs says what HyperPod mounts",
        )


def delete_record_and_prepare_mount_point(node: Node, mount: Mount) -> None:
    """Make the mount point and what the kind needs besides; the record of an earlier mount is deleted."""
    delete_record(node, mount)
    kind_of(mount).prepare(node, mount)
    set_packet_rules_and_make_mount_point(node, mount)


@contextlib.contextmanager
def hold_mount_lock_or_raise(node: Node, mount: Mount) -> Iterator[None]:
    """Hold the mount's lock. Raises MountFailed when another process keeps it for 30 s."""
    with hold_lock(node, f"{mount.name}.mount", seconds=30) as locked:
        if not locked:
            raise MountFailed(f"{mount.name}: another process has been working on this mount for 30 s")
        yield


# Mounts that HyperPod makes itself (model/platform.py): waited for and checked, never made a second time.
#
# How HyperPod keeps them over a reboot is not published; AWS's own scripts write fstab, some with an automount. Where
# systemd knows a mount unit of that path, starting it is the platform's own way to mount it, with the platform's
# options.

PLATFORM_MOUNT_WITHIN = 120.0
"""Seconds that HyperPod gets: in on_init_complete mode it has mounted before our script starts."""


def platform_unit(mount: Mount) -> str:
    """The mount unit that systemd makes from a line of fstab for this path."""
    return f"{systemd_escape_path(mount.path)}.mount"


def start_platform_unit(node: Node, mount: Mount) -> bool:
    """Have systemd mount what the platform itself has defined for the path; False when it has defined nothing."""
    unit = platform_unit(mount)
    # A mount that nobody wrote down has a unit too, but no file: such a unit cannot be started.
    if not systemd.query_unit_properties(node, unit, ["FragmentPath"]).get("FragmentPath"):
        return False
    try:
        node.runner.run(["systemctl", "start", unit], timeout=90)
    except RunError as err:
        raise MountFailed(
            f"{mount.name}: HyperPod's own {unit}: {systemd.last_log_line(node, unit) or err.message}",
            hint=f"on the node: systemctl status {unit}",
        ) from err
    return True


def not_mounted_error(mount: Mount) -> MountFailed:
    """What to say when the platform has not made the mount."""
    return MountFailed(
        f"{mount.name}: HyperPod has not mounted {mount.path} after {PLATFORM_MOUNT_WITHIN:g} s",
        hint="InstanceStorageConfigs holds for nodes made after it was set: hyperpod-kit replace-node",
    )
