"""What EFS and S3 Files call file systems and access points."""

from __future__ import annotations

import re
from typing import Iterable, Iterator, Union

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount

FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]{8,40}")
ACCESS_POINT_ID = re.compile(r"fsap-[0-9a-f]{17}")
"""As efs-utils checks it."""


def wrong_ids(mounts: Iterable[tuple[Union[EfsMount, S3FilesMount], str]], service: str) -> Iterator[Finding]:
    """Ids are ids."""
    for mount, place in mounts:
        if not FILE_SYSTEM_ID.fullmatch(mount.file_system_id):
            yield Finding(
                "HPK-E001",
                f"{place}.file_system_id",
                f"`{mount.file_system_id}` is not the id of an {service} file system",
                "Write it like fs-0123456789abcdef0",
            )
        if mount.access_point_id is not None and not ACCESS_POINT_ID.fullmatch(mount.access_point_id):
            yield Finding(
                "HPK-E002",
                f"{place}.access_point_id",
                f"`{mount.access_point_id}` is not the id of an access point",
                "Write it like fsap-0123456789abcdef0",
            )
