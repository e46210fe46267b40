"""EFS, S3 Files and FSx: ids, names, what an access point needs, and whose an FSx mount is."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.patterns import REGION
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model import platform
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount

FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]{8,40}")
ACCESS_POINT_ID = re.compile(r"fsap-[0-9a-f]{17}")
"""As efs-utils checks it."""
FSX_DNS = re.compile(r"(fs|fc)i?-[0-9a-f]{8,}\.[a-z0-9.-]{4,253}")
LUSTRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,8}")
EXPORT = re.compile(r"/fsx(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def efs(settings: Settings) -> Iterator[Finding]:
    """Ids of EFS and S3 Files are ids, and EFS's access points and IAM come with TLS (S3 Files has it always)."""
    for mount, place in settings.written_mounts:
        if not isinstance(mount, (EfsMount, S3FilesMount)):
            continue
        if not FILE_SYSTEM_ID.fullmatch(mount.file_system_id):
            service = "EFS" if isinstance(mount, EfsMount) else "S3 Files"
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
        if isinstance(mount, EfsMount) and mount.access_point_id is not None and not mount.tls:
            yield Finding("HPK-E003", f"{place}.tls", "an access point is mounted with TLS only", "Set tls to true")
        if isinstance(mount, EfsMount) and mount.iam and not mount.tls:
            yield Finding("HPK-E004", f"{place}.iam", "IAM authorization needs TLS", "Set tls to true")


def regions(settings: Settings) -> Iterator[Finding]:
    """The `region` of a mount is a valid AWS region."""
    for mount, place in settings.written_mounts:
        region = mount.region
        if region is not None and not re.fullmatch(REGION, region):
            yield Finding("HPK-M007", f"{place}.region", f"`{region}` is not an AWS region", "Write it like us-east-1")


def lustre(settings: Settings) -> Iterator[Finding]:
    """The DNS name and the mount name are what FSx gives out."""
    for mount, place in settings.written(LustreMount):
        short = place == "fsx_dns_name"
        if not FSX_DNS.fullmatch(mount.dns_name):
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


def openzfs(settings: Settings) -> Iterator[Finding]:
    """The DNS name is what FSx gives out, and every volume lies below /fsx."""
    for mount, place in settings.written(OpenZfsMount):
        if not FSX_DNS.fullmatch(mount.dns_name):
            yield Finding(
                "HPK-F004",
                place if place == "fsx_openzfs_dns_name" else f"{place}.dns_name",
                f"`{mount.dns_name}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            )
        if not EXPORT.fullmatch(mount.export):
            yield Finding(
                "HPK-F005",
                f"{place}.export",
                f"`{mount.export}` is not the path of an OpenZFS volume",
                "Use /fsx for the root volume, or /fsx/NAME",
            )


def by_the_platform(settings: Settings) -> Iterator[Finding]:
    """HyperPod makes one FSx mount of a kind in a group: a mount is HyperPod's in all its groups, or ours in all."""
    for mount, place in settings.placed_mounts:
        if not mount.platform:
            continue
        carriers = [group for group in settings.cluster.groups if mount.carried_by(group.role, group.name)]
        for group in carriers:
            if mount.name not in platform.first_of_platform(settings.mounts, group.name, group.role):
                yield Finding(
                    "HPK-F006",
                    place,
                    f"HyperPod would mount `{mount.name}` itself in some of its groups, but in `{group.name}` "
                    f"another one of its kind",
                    "List the mount that all groups share first, or use on_create mode",
                )
                break


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
