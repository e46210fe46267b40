"""FSx for Lustre: the stand-in of mount.lustre, over directories that show the source of the kernel's client."""

from __future__ import annotations

from typing import Any, Mapping

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, foreign_mount_command_builder

LUSTRE_DNS_NAME = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME = "abcdefgh", "hgfedcba"


def initial_file_system_registry(gateway: str) -> Mapping[str, Any]:
    """Return the initial registry: mount names, with the address that serves as their servers'."""
    return {name: {"dns": LUSTRE_DNS_NAME, "ip": gateway} for name in (LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME)}


KIND = RehearsedMount(
    data="fsx",
    registry=initial_file_system_registry,
    # A new FSx file system belongs to root; AWS's lifecycle scripts open it to the users. Sticky, as /tmp is.
    directories=dict.fromkeys((LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME), 0o1777),
    clients=("usr/sbin/mount.lustre",),
    shown={"lustre": ("lustre", "10.0.0.1@tcp:/{name}")},
    substitute_command=foreign_mount_command_builder(
        "fuse.lustre", "lustre", f"{LUSTRE_DNS_NAME}@tcp:/{OTHER_LUSTRE_MOUNT_NAME}"
    ),
)
