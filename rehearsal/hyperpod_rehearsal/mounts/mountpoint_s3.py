"""Mountpoint for S3: the stand-in of mount-s3, which speaks to the rehearsal's own S3."""

from __future__ import annotations

from typing import List, Optional

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, empty_file_system_registry

BUCKETS = ("sagemaker-hyperpod-kit-demo", "sagemaker-hyperpod-kit-data")


def other_bucket_mount_command_or_none(fs_type: str, server_command_line: List[str]) -> Optional[List[str]]:
    """Return the command that mounts the other bucket, None for a mount that is not Mountpoint's.

    The kernel shows no more than `fuse` as the type.
    """
    if fs_type != "fuse" or "mount-s3" not in server_command_line:
        return None
    return ["/usr/bin/mount-s3", "--allow-other", next(name for name in BUCKETS if name not in server_command_line)]


KIND = RehearsedMount(
    data="",
    registry=empty_file_system_registry,
    directories={},
    clients=("usr/bin/mount-s3",),
    shown={},
    substitute_command=other_bucket_mount_command_or_none,
)
