"""Where a node has a large and fast disk of its own, for what containers unpack: images do not belong on the root disk.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts.kinds.instance_store import PLATFORM
from hyperpod_kit.system.mountinfo import find_mount_at
from hyperpod_kit.untrusted import by_descriptor

EBS = "/opt/sagemaker"
"""Where HyperPod mounts the volume of a group that has one."""

ORDERED = """\
# Written by hyperpod-kit: its data is on {place}.
[Unit]
RequiresMountsFor={place}
# The image's own service mounts it, without a unit of the mount.
After=dlami-nvme.service
"""
"""Lines of a daemon's unit, which must not write below a mount that is not there yet."""


def find_local_disk_or_volume_path(node: Node) -> str:
    """Return a mount of the local disk, the image's instance store, or the group's volume, whichever is
    mounted; "" for none."""
    mountinfo = read_text(node.paths.mountinfo) or ""
    configured = [mount.path for mount in node.mounts if mount.traits.local_disk]
    return next((path for path in (*configured, PLATFORM, EBS) if find_mount_at(mountinfo, path) is not None), "")


def ensure_world_writable_directory(node: Node, path: str) -> bool:
    """Make a directory in which everybody may make their own, as in /tmp; True when it was not there.

    It goes with the disk, at a reboot too. Raises OSError.
    """
    real = node.paths.under_root(path)
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(real).st_mode & 0o7777 == 0o1777:
            return False
    by_descriptor.make_directories(real)
    by_descriptor.set_mode(real, 0o1777)
    return True
