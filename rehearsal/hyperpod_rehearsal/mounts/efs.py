"""EFS: the stand-in of efs-utils' mount helper, over directories."""

from __future__ import annotations

from typing import Any, Mapping

from hyperpod_rehearsal.mounts.rehearsed import (
    RehearsedMount,
    access_point_of_user_trainer,
    foreign_mount_command_builder,
)

EFS_ID, OTHER_EFS_ID = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
HOMES_EFS_ID = "fs-0a1b2c3d4e5f60718"
"""Without access points and without a policy: what an admin begins with who wants homes on EFS."""
ACCESS_POINT_ID = "fsap-0123456789abcdef0"


def initial_file_system_registry(gateway: str) -> Mapping[str, Any]:
    """Return the initial registry: file systems and access points. The EFS endpoint adds access points later."""
    return {
        "file_systems": [EFS_ID, OTHER_EFS_ID, HOMES_EFS_ID],
        "access_points": access_point_of_user_trainer(ACCESS_POINT_ID, EFS_ID),
    }


KIND = RehearsedMount(
    data="efs",
    registry=initial_file_system_registry,
    directories=dict.fromkeys((EFS_ID, OTHER_EFS_ID, HOMES_EFS_ID), 0o755),
    clients=("usr/sbin/mount.efs",),
    shown={"efs": ("nfs4", "127.0.0.1:/")},
    substitute_command=foreign_mount_command_builder("fuse.efs", "efs", "-o", "tls", f"{OTHER_EFS_ID}:/"),
)
