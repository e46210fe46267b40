"""Mountpoint for S3: bucket, prefix, who owns what is seen, what is cached, and how the bucket is reached."""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit.config.mounts.form import MountForm, ShortForm
from hyperpod_kit.config.mounts.mount_paths import PATH, RESERVED_TREES, is_file_path_at_or_below
from hyperpod_kit.config.settings import patterns
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.findings import INFO, WARNING, Finding
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.config.settings.settings import ProvisioningParameters, Settings
from hyperpod_kit.model.mounts.base import is_on_login_or_compute_nodes
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount

# Mountpoint for S3: what it caches, in which parts it writes, and how it reaches the bucket.

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
                    f"`{where}` lies on `{above.name}`, which is not a local disk",
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
                    "HPK-S015", f"{at}.{key}", f"{size} MiB is not a size of a part", f"Use {smallest} to {largest}"
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
                f"`{mount.sse_kms_key_id}` cannot be used: it is not a key of KMS, or sse is not aws:kms",
                "Write its ARN, its id or alias/NAME, and set sse to aws:kms",
            )


# --- The mount -------------------------------------------------------------------------------------------------------

PREFIX = r"((?!\.\.?/)[A-Za-z0-9._=-]+/)+"
MODE = Pattern("HPK-S005", r"0?[0-7]{3}", "`{value}` is not an octal mode", 'Write it like "0755"')


def mount_from_short_form(parameters: ProvisioningParameters) -> Optional[S3Mount]:
    """The read-only mount at /mount-s3 that `bucketname` stands for."""
    if parameters.bucketname:
        return S3Mount("mount-s3", "/mount-s3", parameters.bucketname)
    return None


def report_short_form_is_read_only(settings: Settings) -> Iterator[Finding]:
    """Report as information that `bucketname` is mounted read-only, while AWS's own scripts mount it
    writable."""
    if settings.parameters.bucketname and re.fullmatch(patterns.BUCKET, settings.parameters.bucketname):
        yield Finding(
            "HPK-S023",
            "bucketname",
            f"`{settings.parameters.bucketname}` is mounted at /mount-s3 read-only: no checkpoint can be written there",
            "For data that is right. To write, remove it, and give hyperpod_kit.mounts a mountpoint-s3 mount with "
            "read_only false",
            INFO,
        )


def check_prefix_and_write_options(settings: Settings) -> Iterator[Finding]:
    """Prefixes end in `/` and have no surprises."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        if mount.prefix and not mount.prefix.endswith("/"):
            yield Finding(
                "HPK-S002", f"{at}.prefix", f"`{mount.prefix}` does not end with /", f"Write `{mount.prefix}/`"
            )
        elif mount.prefix and not re.fullmatch(PREFIX, mount.prefix):
            yield Finding(
                "HPK-S003",
                f"{at}.prefix",
                f"`{mount.prefix}` has characters that a shell or systemd would change",
                "Use letters, digits and ._=- between slashes, no slash first",
            )
        writes = [key for key in ("allow_delete", "allow_overwrite", "incremental_upload") if getattr(mount, key)]
        if mount.read_only and writes:
            yield Finding(
                "HPK-S004", f"{at}.{writes[0]}", "the mount is read-only", "Remove it, or set read_only to false"
            )
        if not mount.read_only and mount.incremental_upload and not mount.bucket.endswith("--x-s3"):
            yield Finding(
                "HPK-S008",
                f"{at}.incremental_upload",
                f"`{mount.bucket}` is not a directory bucket: only those can append",
                "Remove it, or use a bucket of S3 Express One Zone",
            )


def check_uid_gid_and_world_writable_modes(settings: Settings) -> Iterator[Finding]:
    """Nothing is writable by everybody; ids are ids."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        for key, mode in (("dir_mode", mount.dir_mode), ("file_mode", mount.file_mode)):
            if MODE.fits(mode) and int(mode, 8) & 0o002 and not mount.world_writable:
                yield Finding(
                    "HPK-S006",
                    f"{at}.{key}",
                    f"`{mode}` lets everybody write",
                    "Set uid and gid to the user who writes, and 0755 or 0644; or world_writable to true",
                )
        modes = [mode for mode in (mount.dir_mode, mount.file_mode) if MODE.fits(mode)]
        if mount.world_writable and not any(int(mode, 8) & 0o002 for mode in modes):
            yield Finding(
                "HPK-S009",
                f"{at}.world_writable",
                "neither dir_mode nor file_mode lets everybody write",
                "Remove it, or set the mode that you mean",
            )
        for key, number in (("uid", mount.uid), ("gid", mount.gid)):
            if not 0 <= number < 2**32 - 1:
                yield Finding(
                    "HPK-S007", f"{at}.{key}", f"{number} is not an id of a user or a group", "Use 0 to 4294967294"
                )


def check_some_user_can_write(settings: Settings) -> Iterator[Finding]:
    """A mount for writing has somebody who writes: without uid, gid or a mode of its own all of it is root's."""
    for mount, at in settings.mounts_of_kind(S3Mount):
        if not (MODE.fits(mount.dir_mode) and is_on_login_or_compute_nodes(mount) and mount.only_root_writes()):
            continue
        yield Finding(
            "HPK-S024",
            f"{at}.read_only",
            f"only root can write to `{mount.path}`: every directory there is shown with owner {mount.uid}, group "
            f"{mount.gid} and mode {mount.dir_mode}",
            "Set uid to the user who writes; or gid to a group, with dir_mode 0775 and file_mode 0664; or read_only to "
            "true",
            WARNING,
        )


def check_bundle_prefix_not_writable(settings: Settings) -> Iterator[Finding]:
    """Report a mount that can write where the bundle is: whoever replaces it is root of every node made
    afterwards."""
    bundle = settings.bundle
    for mount, at in settings.mounts_of_kind(S3Mount):
        if mount.read_only or mount.bucket != bundle.bucket:
            continue
        if mount.prefix.startswith(bundle.prefix) or bundle.prefix.startswith(mount.prefix):
            yield Finding(
                "HPK-B005",
                KIND.configuration_path_of_key(at, "prefix"),
                f"`{mount.name}` can write to s3://{bundle.bucket}/{bundle.prefix}, where the bundle is: whoever may "
                f"write there is root of every node that is made or replaced afterwards",
                "Set read_only to true, or use another bucket, or a prefix beside the bundle's",
            )


KIND = MountForm(
    fields={
        "bucket": Field(
            "The bucket.",
            pattern=Pattern(
                "HPK-S001",
                patterns.BUCKET,
                "`{value}` is not a bucket name",
                "Use 3 to 63 lower-case letters, digits, dots and hyphens, without s3://",
            ),
        ),
        "prefix": Field("Only this part of it; ends in /."),
        "read_only": Field("Whether nothing can be written."),
        "allow_delete": Field("Whether files can be removed."),
        "allow_overwrite": Field("Whether a file can be written again from its beginning."),
        "incremental_upload": Field("Whether files can be appended to; on directory buckets only."),
        "uid": Field("Owner shown for every file."),
        "gid": Field("Group shown for every file."),
        "dir_mode": Field("Mode shown for directories, octal, in quotes.", pattern=MODE),
        "file_mode": Field("Mode shown for files, octal, in quotes.", pattern=MODE),
        "cache_dir": Field("Directory of a local cache; it is not encrypted and relaxes consistency."),
        "cache_mib": Field("MiB that the cache may use."),
        "metadata_ttl": Field(
            "Seconds that metadata are believed, or `minimal`, or `indefinite`.", pattern=METADATA_TTL
        ),
        "read_part_size_mib": Field("MiB of one request when reading."),
        "write_part_size_mib": Field("MiB of one part of an upload; a file has at most 10,000 parts."),
        "largest_file_gib": Field("GiB of the largest file that will be written, to check the parts against."),
        "max_threads": Field("Threads that serve the file system."),
        "maximum_throughput_gbps": Field("Gbit/s that the client aims at."),
        "endpoint_url": Field("An endpoint that is not AWS's own.", pattern=ENDPOINT),
        "force_path_style": Field("Whether the bucket's name stands in the path instead of the host."),
        "expected_bucket_owner": Field("Account that has to own the bucket, in quotes.", pattern=ACCOUNT),
        "requester_pays": Field("Whether requests are paid by this account."),
        "storage_class": Field("Storage class of what is written."),
        "sse": Field("Encryption of what is written: aws:kms or aws:kms:dsse."),
        "sse_kms_key_id": Field("KMS key of that."),
    },
    nicknames=("s3", "mount-s3", "mountpoint"),
    short_form=ShortForm({"bucket": "bucketname"}, mount_from_short_form),
    storage_config=None,
    rules=(
        report_short_form_is_read_only,
        check_prefix_and_write_options,
        check_uid_gid_and_world_writable_modes,
        check_some_user_can_write,
        check_bundle_prefix_not_writable,
        check_cache_directory,
        check_part_sizes_limits_and_largest_file,
        check_storage_class_and_encryption,
    ),  # HPK-S, HPK-B
)
