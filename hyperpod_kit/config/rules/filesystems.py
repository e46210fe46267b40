"""EFS and FSx for Lustre: ids, and what an access point needs."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts import EfsMount, LustreMount

EFS_ID = re.compile(r"fs-[0-9a-f]{8,40}")
ACCESS_POINT_ID = re.compile(r"fsap-[0-9a-f]{8,40}")
LUSTRE_DNS = re.compile(r"(fs|fc)i?-[0-9a-f]{8,}\.[a-z0-9.-]{4,253}")
LUSTRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,8}")


def efs(settings: Settings) -> Iterator[Finding]:
    """EFS ids are ids, and access points and IAM come with TLS."""
    for mount, place in zip(settings.mounts, settings.mount_places):
        if not isinstance(mount, EfsMount):
            continue
        if not EFS_ID.fullmatch(mount.file_system_id):
            yield Finding(
                "HPK-E001",
                f"{place}.file_system_id",
                f"`{mount.file_system_id}` is not the id of an EFS file system",
                "Write it like fs-0123456789abcdef0",
            )
        if mount.access_point_id is not None and not ACCESS_POINT_ID.fullmatch(mount.access_point_id):
            yield Finding(
                "HPK-E002",
                f"{place}.access_point_id",
                f"`{mount.access_point_id}` is not the id of an access point",
                "Write it like fsap-0123456789abcdef0",
            )
        if mount.access_point_id is not None and not mount.tls:
            yield Finding("HPK-E003", f"{place}.tls", "an access point is mounted with TLS only", "Set tls to true")
        if mount.iam and not mount.tls:
            yield Finding("HPK-E004", f"{place}.iam", "IAM authorization needs TLS", "Set tls to true")


def lustre(settings: Settings) -> Iterator[Finding]:
    """The DNS name and the mount name are what FSx gives out."""
    for mount, place in zip(settings.mounts, settings.mount_places):
        if not isinstance(mount, LustreMount):
            continue
        short = place == "fsx_dns_name"
        if not LUSTRE_DNS.fullmatch(mount.dns_name):
            yield Finding(
                "HPK-F001",
                place if short else f"{place}.dns_name",
                f"`{mount.dns_name}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            )
        if not LUSTRE_NAME.fullmatch(mount.mount_name):
            yield Finding(
                "HPK-F002",
                "fsx_mountname" if short else f"{place}.mount_name",
                f"`{mount.mount_name}` is not a Lustre mount name",
                "It is 1 to 8 letters and digits: see `aws fsx describe-file-systems`",
            )


def short_form(settings: Settings) -> Iterator[Finding]:
    """AWS's two FSx keys come together."""
    have = {"fsx_dns_name": settings.parameters.fsx_dns_name, "fsx_mountname": settings.parameters.fsx_mountname}
    if sum(1 for value in have.values() if value) == 1:
        missing = next(key for key, value in have.items() if not value)
        yield Finding(
            "HPK-F003",
            missing,
            "missing: the two FSx keys belong together",
            f'Add "{missing}", or remove the other one',
        )
