"""FSx for OpenZFS: the stand-in of mount.nfs, over directories."""

from __future__ import annotations

from typing import Any, Mapping

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, foreign_mount_command_builder

OPENZFS_DNS_NAME = "fs-0123456789fedcba0.fsx.us-east-1.amazonaws.com"
OTHER_OPENZFS_DNS_NAME = "fs-0abcdef9876543210.fsx.us-east-1.amazonaws.com"
OPENZFS_EXPORT = "/fsx"


def initial_file_system_registry(gateway: str) -> Mapping[str, Any]:
    """Return the initial registry: servers and what they export."""
    return {name: {"exports": [OPENZFS_EXPORT]} for name in (OPENZFS_DNS_NAME, OTHER_OPENZFS_DNS_NAME)}


KIND = RehearsedMount(
    data="openzfs",
    registry=initial_file_system_registry,
    # As for Lustre: root's, opened to the users.
    directories={
        f"{name.split('.')[0]}{OPENZFS_EXPORT}": 0o1777 for name in (OPENZFS_DNS_NAME, OTHER_OPENZFS_DNS_NAME)
    },
    clients=("usr/sbin/mount.nfs",),
    shown={"nfs": ("nfs4", "{source}")},
    substitute_command=foreign_mount_command_builder("fuse.nfs4", "nfs", f"{OTHER_OPENZFS_DNS_NAME}:{OPENZFS_EXPORT}"),
)
