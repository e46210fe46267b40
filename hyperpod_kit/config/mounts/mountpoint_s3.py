"""Mountpoint for S3: bucket, prefix, and who owns what is seen."""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit.config import patterns
from hyperpod_kit.config.field import Field
from hyperpod_kit.config.findings import INFO, WARNING, Finding
from hyperpod_kit.config.mounts import mountpoint_s3_options as options
from hyperpod_kit.config.mounts.form import MountForm, ShortForm
from hyperpod_kit.config.patterns import Pattern
from hyperpod_kit.config.settings import ProvisioningParameters, Settings
from hyperpod_kit.model.mounts.base import is_on_login_or_compute_nodes
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount

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
            "Seconds that metadata are believed, or `minimal`, or `indefinite`.", pattern=options.METADATA_TTL
        ),
        "read_part_size_mib": Field("MiB of one request when reading."),
        "write_part_size_mib": Field("MiB of one part of an upload; a file has at most 10,000 parts."),
        "largest_file_gib": Field("GiB of the largest file that will be written, to check the parts against."),
        "max_threads": Field("Threads that serve the file system."),
        "maximum_throughput_gbps": Field("Gbit/s that the client aims at."),
        "endpoint_url": Field("An endpoint that is not AWS's own.", pattern=options.ENDPOINT),
        "force_path_style": Field("Whether the bucket's name stands in the path instead of the host."),
        "expected_bucket_owner": Field("Account that has to own the bucket, in quotes.", pattern=options.ACCOUNT),
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
        options.check_cache_directory,
        options.check_part_sizes_limits_and_largest_file,
        options.check_storage_class_and_encryption,
    ),  # HPK-S, HPK-B
)
