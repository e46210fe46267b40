"""Mountpoint for S3: bucket, prefix, and who owns what is seen."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.patterns import BUCKET
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount

PREFIX = r"([A-Za-z0-9._=-]+/)+"
MODE = re.compile(r"0?[0-7]{3}")


def bucket_and_prefix(settings: Settings) -> Iterator[Finding]:
    """Bucket names are legal, prefixes end in `/` and have no surprises."""
    for mount, place in settings.written(S3Mount):
        if not re.fullmatch(BUCKET, mount.bucket):
            yield Finding(
                "HPK-S001",
                place if place == "bucketname" else f"{place}.bucket",
                f"`{mount.bucket}` is not a bucket name",
                "Use 3 to 63 lower-case letters, digits, dots and hyphens, without s3://",
            )
        if mount.prefix and not mount.prefix.endswith("/"):
            yield Finding(
                "HPK-S002", f"{place}.prefix", f"`{mount.prefix}` does not end with /", f"Write `{mount.prefix}/`"
            )
        elif mount.prefix and not re.fullmatch(PREFIX, mount.prefix):
            yield Finding(
                "HPK-S003",
                f"{place}.prefix",
                f"`{mount.prefix}` has characters that a shell or systemd would change",
                "Use letters, digits and ._=- between slashes, no slash first",
            )
        writes = [key for key in ("allow_delete", "allow_overwrite", "incremental_upload") if getattr(mount, key)]
        if mount.read_only and writes:
            yield Finding(
                "HPK-S004", f"{place}.{writes[0]}", "the mount is read-only", "Remove it, or set read_only to false"
            )
        if not mount.read_only and mount.incremental_upload and not mount.bucket.endswith("--x-s3"):
            yield Finding(
                "HPK-S008",
                f"{place}.incremental_upload",
                f"`{mount.bucket}` is not a directory bucket: only those can append",
                "Remove it, or use a bucket of S3 Express One Zone",
            )


def ownership(settings: Settings) -> Iterator[Finding]:
    """Modes are octal and nothing is writable by everybody; ids are ids."""
    for mount, place in settings.written(S3Mount):
        for key, mode in (("dir_mode", mount.dir_mode), ("file_mode", mount.file_mode)):
            if not MODE.fullmatch(mode):
                yield Finding("HPK-S005", f"{place}.{key}", f"`{mode}` is not an octal mode", 'Write it like "0755"')
            elif int(mode, 8) & 0o002 and not mount.world_writable:
                yield Finding(
                    "HPK-S006",
                    f"{place}.{key}",
                    f"`{mode}` lets everybody write",
                    "Set uid and gid to the user who writes, and 0755 or 0644; or world_writable to true",
                )
        modes = [mode for mode in (mount.dir_mode, mount.file_mode) if MODE.fullmatch(mode)]
        if mount.world_writable and not any(int(mode, 8) & 0o002 for mode in modes):
            yield Finding(
                "HPK-S009",
                f"{place}.world_writable",
                "neither dir_mode nor file_mode lets everybody write",
                "Remove it, or set the mode that you mean",
            )
        for key, number in (("uid", mount.uid), ("gid", mount.gid)):
            if not 0 <= number < 2**32 - 1:
                yield Finding(
                    "HPK-S007", f"{place}.{key}", f"{number} is not an id of a user or a group", "Use 0 to 4294967294"
                )
