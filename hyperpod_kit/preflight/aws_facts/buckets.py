"""Buckets: that of the bundle, and those of the mounts that are AWS's."""

from __future__ import annotations

from hyperpod_kit.aws.buckets import BucketHead, Buckets
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import Queried
from hyperpod_kit.preflight.mounts.inquiry import BucketOf
from hyperpod_kit.preflight.mounts.registry import INQUIRIES


def mounted_aws_buckets(settings: Settings) -> list[tuple[BucketOf, Mount]]:
    """Return the part of a bucket that each mount shows, with the mount; only buckets that are AWS's."""
    shown_buckets = []
    for mount, at in settings.sourced_mounts:
        of_mount = INQUIRIES[mount.kind].bucket
        shown = None
        if of_mount is not None:
            shown = of_mount(mount, at)
        if shown is not None:
            shown_buckets.append((shown, mount))
    return shown_buckets


def bucket_config_paths(settings: Settings) -> dict[str, str]:
    """Return bucket -> the path in the configuration that names it first."""
    if settings.entry_script:
        paths = {settings.bundle.bucket: "hyperpod_kit.bundle.bucket"}
    else:
        paths = {}
    for shown, _ in mounted_aws_buckets(settings):
        paths.setdefault(shown.bucket, shown.path)
    return paths


def read_only_prefix_config_paths(settings: Settings) -> dict[tuple[str, str], str]:
    """Return (bucket, prefix) of every read-only mount -> its path in the configuration."""
    return {
        (shown.bucket, shown.prefix): shown.path for shown, mount in mounted_aws_buckets(settings) if mount.read_only
    }


def fetch_head(client: QueryClient, settings: Settings, bucket: str, path: str) -> Queried[BucketHead]:
    """Query whether a bucket exists, whether the caller may list it, and where it is."""
    calls = client.service_client(Buckets, settings.cluster.region)
    return client.query_or_record_failure(
        "s3:ListBucket", path, f"whether bucket {bucket} exists", lambda: calls.head(bucket)
    )


def query_prefix_is_empty(
    client: QueryClient, settings: Settings, bucket: str, prefix: str, path: str
) -> Queried[bool]:
    """Query whether there is nothing below a prefix."""
    calls = client.service_client(Buckets, settings.cluster.region)
    return client.query_or_record_failure(
        "s3:ListBucket",
        path,
        f"whether s3://{bucket}/{prefix} has objects",
        lambda: calls.is_empty(bucket, prefix),
    )
