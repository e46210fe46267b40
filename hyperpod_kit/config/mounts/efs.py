"""EFS: what access points, IAM and homes on the same file system ask of a mount."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.mounts.file_system_ids import ACCESS_POINT_ID, file_system_id_pattern
from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.efs import EfsMount


def check_access_point_and_iam_use_tls(settings: Settings) -> Iterator[Finding]:
    """Report access points and IAM without TLS."""
    for mount, at in settings.mounts_of_kind(EfsMount):
        if mount.access_point_id is not None and not mount.tls:
            yield Finding("HPK-E003", f"{at}.tls", "an access point is mounted with TLS only", "Set tls to true")
        if mount.iam and not mount.tls:
            yield Finding("HPK-E004", f"{at}.iam", "IAM authorization needs TLS", "Set tls to true")


def check_mounts_denied_by_homes_policy(settings: Settings) -> Iterator[Finding]:
    """Report other mounts of the homes' file system that its policy would deny: without access point or
    IAM."""
    homes = settings.homes
    for mount, at in settings.mounts_of_kind(EfsMount):
        if homes is None or mount.file_system_id != homes.file_system_id:
            continue
        if mount.access_point_id is None:
            yield Finding(
                "HPK-U015",
                f"{at}.access_point_id",
                f"{mount.file_system_id} holds the homes: its policy denies mounts without an access point",
                "Make an access point for it, or use another file system",
            )
        elif not mount.iam:
            yield Finding(
                "HPK-U016",
                f"{at}.iam",
                f"{mount.file_system_id} holds the homes: its policy denies mounts without IAM",
                "Set iam to true, and allow the access point in a statement of your own",
            )


KIND = MountForm(
    fields={
        "file_system_id": Field("The file system, fs-….", pattern=file_system_id_pattern("EFS")),
        "access_point_id": Field("The access point, fsap-…; needs tls.", pattern=ACCESS_POINT_ID),
        "tls": Field("Whether the connection is encrypted."),
        "iam": Field("Whether the node's role is checked by the file system's policy; needs tls."),
    },
    nicknames=("nfs",),
    short_form=None,
    storage_config=None,
    rules=(check_access_point_and_iam_use_tls, check_mounts_denied_by_homes_policy),  # HPK-E, HPK-U
)
