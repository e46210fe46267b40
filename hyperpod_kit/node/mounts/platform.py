"""Mounts that HyperPod makes itself (model/platform.py): waited for and checked, never made a second time.

How HyperPod keeps them over a reboot is not published; AWS's own scripts write fstab, some with an automount. Where
systemd knows a mount unit of that path, starting it is the platform's own way to mount it, with the platform's options.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.units import systemd_escape_path
from hyperpod_kit.node import systemd
from hyperpod_kit.node.context import Node

WITHIN = 120.0
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
        f"{mount.name}: HyperPod has not mounted {mount.path} after {WITHIN:g} s",
        hint="InstanceStorageConfigs holds for nodes made after it was set: hyperpod-kit replace-node",
    )
