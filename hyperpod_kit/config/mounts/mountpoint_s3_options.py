"""Mountpoint for S3: what it caches, in which parts it writes, and how it reaches the bucket."""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit.config.findings import WARNING, Finding
from hyperpod_kit.config.patterns import Pattern
from hyperpod_kit.config.rules.mount_paths import PATH, RESERVED_TREES, is_file_path_at_or_below
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount

METADATA_TTL = Pattern(
    "HPK-S014",
    r"minimal|indefinite|[0-9]{1,9}",
    "`{value}` is not a time",
    'Write seconds like "60", or "minimal", or "indefinite"',
)
ENDPOINT = Pattern(
    "HPK-S018",
    r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?",
    "`{value}` is not the URL of an endpoint",
    "Write it like https://bucket.vpce-0123.s3.us-east-1.vpce.amazonaws.com",
)
ACCOUNT = Pattern("HPK-S019", r"[0-9]{12}", "`{value}` is not an account", "Write its twelve digits in quotes")
KEY = re.compile(r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:)?(key|alias)/[A-Za-z0-9/_-]+|[0-9a-f-]{36}")
STORAGE_CLASSES = (
    "STANDARD",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
    "GLACIER",
    "DEEP_ARCHIVE",
    "REDUCED_REDUNDANCY",
    "EXPRESS_ONEZONE",
)
ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")

PARTS = 10_000
"""Parts that S3 allows an object to be uploaded in; Mountpoint fixes their size when it opens a file."""
DEFAULT_PART_MIB = 8
PART_LIMITS = (5, 5120)
"""MiB that S3 allows a part to have."""

COUNTS = {"cache_mib": (1, 2**31), "max_threads": (1, 1024), "maximum_throughput_gbps": (1, 10_000)}
"""Key -> smallest and largest sensible value."""


def check_cache_directory(settings: Settings) -> Iterator[Finding]:
    """The cache lies on local disk, in a directory of its own."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        where = mount.cache_dir
        if where is None:
            if mount.cache_mib is not None:
                yield Finding("HPK-S010", f"{at}.cache_mib", "there is no cache_dir", "Add it, or remove cache_mib")
        elif not PATH.fullmatch(where) or ".." in where.split("/") or "." in where.split("/"):
            yield Finding(
                "HPK-S011",
                f"{at}.cache_dir",
                f"`{where}` is not a plain absolute path",
                "Use letters, digits and ._- between slashes, like /opt/dlami/nvme/cache",
            )
        elif any(is_file_path_at_or_below(where, tree) for tree in RESERVED_TREES if tree != "/opt/dlami"):
            yield Finding(
                "HPK-S012", f"{at}.cache_dir", f"`{where}` belongs to the system", "Choose a directory of its own"
            )
        else:
            above = next((other for other in settings.mounts if is_file_path_at_or_below(where, other.path)), None)
            if above is not None and not above.traits.local_disk:
                yield Finding(
                    "HPK-S013",
                    f"{at}.cache_dir",
                    f"`{where}` lies on `{above.name}`, which is no local disk",
                    "Use local NVMe: a mount of kind nvme, or /opt/dlami/nvme",
                )


def check_part_sizes_limits_and_largest_file(settings: Settings) -> Iterator[Finding]:
    """Parts and counts are possible, and the largest file fits into the parts."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        smallest, largest = PART_LIMITS
        for key in ("read_part_size_mib", "write_part_size_mib"):
            size: Optional[int] = getattr(mount, key)
            if size is not None and not smallest <= size <= largest:
                yield Finding(
                    "HPK-S015", f"{at}.{key}", f"{size} MiB is no size of a part", f"Use {smallest} to {largest}"
                )
        for key, (low, high) in COUNTS.items():
            count: Optional[int] = getattr(mount, key)
            if count is not None and not low <= count <= high:
                yield Finding("HPK-S016", f"{at}.{key}", f"{count} is out of range", f"Use {low} to {high}")
        if mount.largest_file_gib is not None and not mount.read_only:
            part = mount.write_part_size_mib or DEFAULT_PART_MIB
            if mount.largest_file_gib * 1024 > part * PARTS:
                needed = -(-mount.largest_file_gib * 1024 // PARTS)
                yield Finding(
                    "HPK-S017",
                    f"{at}.largest_file_gib",
                    f"a file of {mount.largest_file_gib} GiB does not fit into {PARTS:,} parts of {part} MiB: "
                    f"its writer would fail after {part * PARTS / 1024:.1f} GiB",
                    f"Set write_part_size_mib to {needed} or more",
                    WARNING,
                )


def check_storage_class_and_encryption(settings: Settings) -> Iterator[Finding]:
    """Storage class and encryption are what S3 knows."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        if mount.storage_class is not None and mount.storage_class not in STORAGE_CLASSES:
            yield Finding(
                "HPK-S020",
                f"{at}.storage_class",
                f"`{mount.storage_class}` is not a storage class",
                f"Use one of {', '.join(STORAGE_CLASSES)}",
            )
        if mount.sse is not None and mount.sse not in ENCRYPTIONS:
            yield Finding(
                "HPK-S021", f"{at}.sse", f"`{mount.sse}` is not an encryption", f"Use {', '.join(ENCRYPTIONS)}"
            )
        if mount.sse_kms_key_id is not None and (
            not KEY.fullmatch(mount.sse_kms_key_id) or not (mount.sse or "").startswith("aws:kms")
        ):
            yield Finding(
                "HPK-S022",
                f"{at}.sse_kms_key_id",
                f"`{mount.sse_kms_key_id}` cannot be used: it is no key of KMS, or sse is not aws:kms",
                "Write its ARN, its id or alias/NAME, and set sse to aws:kms",
            )
