"""S3 Files: the stand-in of efs-utils' mount helper, over directories."""

from __future__ import annotations

from typing import Any, Mapping

from hyperpod_rehearsal.mounts.rehearsed import (
    RehearsedMount,
    access_point_of_user_trainer,
    foreign_mount_command_builder,
)

S3FILES_ID, OTHER_S3FILES_ID = "fs-0aaaabbbbccccdddd", "fs-0ddddccccbbbbaaaa"
S3FILES_ACCESS_POINT_ID = "fsap-0aaaabbbbccccdddd"


def initial_file_system_registry(gateway: str) -> Mapping[str, Any]:
    """Its file systems and access points."""
    return {
        "file_systems": [S3FILES_ID, OTHER_S3FILES_ID],
        "access_points": access_point_of_user_trainer(S3FILES_ACCESS_POINT_ID, S3FILES_ID),
    }


KIND = RehearsedMount(
    data="s3files",
    registry=initial_file_system_registry,
    directories=dict.fromkeys((S3FILES_ID, OTHER_S3FILES_ID), 0o755),
    clients=("usr/sbin/mount.s3files",),
    shown={"s3files": ("nfs4", "127.0.0.1:/")},
    substitute_command=foreign_mount_command_builder("fuse.s3files", "s3files", f"{OTHER_S3FILES_ID}:/"),
)
