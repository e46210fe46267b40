"""Buckets: that of the bundle, and those of the mounts that are AWS's."""

from __future__ import annotations

from hyperpod_kit.aws.buckets import BucketHead, Buckets
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.preflight.facts import Answer
from hyperpod_kit.preflight.mounts.inquiry import BucketOf
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.queries.client import QueryClient


def places(settings: Settings) -> list[tuple[BucketOf, Mount]]:
    """Every bucket that a mount shows."""
    found = []
    for mount, at in settings.written_mounts:
        of_mount = INQUIRIES[mount.kind].bucket
        shown = of_mount(mount, at) if of_mount is not None else None
        if shown is not None:
            found.append((shown, mount))
    return found


def wanted(settings: Settings) -> dict[str, str]:
    """Bucket -> the path that names it first."""
    found = {settings.bundle.bucket: "hyperpod_kit.bundle.bucket"} if settings.entry_script else {}
    for shown, _ in places(settings):
        found.setdefault(shown.bucket, shown.path)
    return found


def read_prefixes(settings: Settings) -> dict[tuple[str, str], str]:
    """(bucket, prefix) of every mount that only reads -> the path of it: nothing there is nothing to read."""
    return {(shown.bucket, shown.prefix): shown.path for shown, mount in places(settings) if mount.read_only}


def look(client: QueryClient, settings: Settings, bucket: str, path: str) -> Answer[BucketHead]:
    """Whether a bucket is there, and where."""
    calls = client.service(Buckets, settings.cluster.region)
    return client.ask("s3:ListBucket", path, f"whether bucket {bucket} is there", lambda: calls.look(bucket))


def is_empty(client: QueryClient, settings: Settings, bucket: str, prefix: str, path: str) -> Answer[bool]:
    """Whether there is nothing below a prefix."""
    calls = client.service(Buckets, settings.cluster.region)
    return client.ask(
        "s3:ListBucket",
        path,
        f"whether there is anything in s3://{bucket}/{prefix}",
        lambda: calls.is_empty(bucket, prefix),
    )
