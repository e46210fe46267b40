"""What EFS and S3 Files call file systems and access points."""

from __future__ import annotations

from hyperpod_kit.config.settings.patterns import Pattern

ACCESS_POINT_ID = Pattern(
    "HPK-E002",
    r"fsap-[0-9a-f]{17}",  # as efs-utils checks it
    "`{value}` is not the id of an access point",
    "Write it like fsap-0123456789abcdef0",
)


def file_system_id_pattern(service: str) -> Pattern:
    """Make the pattern of the id of a file system of that service."""
    return Pattern(
        "HPK-E001",
        r"fs-[0-9a-f]{8,40}",
        f"`{{value}}` is not the id of an {service} file system",
        "Write it like fs-0123456789abcdef0",
    )
