"""The bundle's bucket and the buckets of the mounts."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.aws.buckets import directory_bucket_zone
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.aws_facts import buckets
from hyperpod_kit.preflight.facts import AccountFacts, value_or_none


def check_buckets_exist_and_listable(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every bucket exists, and the caller may look into it."""
    for name, path in buckets.bucket_config_paths(settings).items():
        head = value_or_none(facts.buckets.get(name))
        if head is None:
            continue
        if not head.exists:
            yield Finding(
                "HPK-V101",
                path,
                f"bucket `{name}` does not exist",
                f"aws s3 mb s3://{name} --region {settings.cluster.region}, or name another bucket",
            )
        elif not head.allowed:
            yield Finding(
                "HPK-V102",
                path,
                f"bucket `{name}` exists, but {facts.caller.arn} may not list it",
                "If your account owns it, allow yourself s3:ListBucket; otherwise its owner must give the "
                f"role {settings.cluster.execution_role} access",
                WARNING,
            )


def check_region(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The bundle's bucket is in the cluster's region; a mount's is where the mount says, or in the cluster's."""
    cluster_region = settings.cluster.region
    bundle = None
    if settings.entry_script:
        bundle = value_or_none(facts.buckets.get(settings.bundle.bucket))
    if bundle is not None and bundle.region not in (None, cluster_region):
        yield Finding(
            "HPK-V103",
            "hyperpod_kit.bundle.bucket",
            f"bucket `{settings.bundle.bucket}` is in {bundle.region}, but the cluster is in {cluster_region}",
            "Use a bucket in the cluster's region: SageMaker reads its inputs from it",
        )
    for (name, _, path), mount in buckets.mounted_aws_buckets(settings):
        head = value_or_none(facts.buckets.get(name))
        if head is None or head.region is None:
            continue
        if mount.region is not None and mount.region != head.region:
            yield Finding(
                "HPK-V104",
                f"{path.rpartition('.')[0]}.region",
                f"bucket `{name}` is in {head.region}, but the mount's region is {mount.region}",
                f"Write {head.region}, or remove the key: with a region set, mount-s3 uses only that one",
            )
        elif head.region != cluster_region:
            yield Finding(
                "HPK-V105",
                path,
                f"bucket `{name}` is in {head.region}, but the nodes are in {cluster_region}: access is "
                "slower, and AWS charges for each byte",
                f"Copy the data that the nodes read to a bucket in {cluster_region}",
                WARNING,
            )


def check_directory_bucket_zones(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A directory bucket lies in one zone: the nodes should be there."""
    subnets = facts.known_subnets
    zones = {subnet.zone for subnet in subnets or ()}
    for (name, _, path), _ in buckets.mounted_aws_buckets(settings):
        lies = directory_bucket_zone(name)
        if zones and lies is not None and lies not in zones:
            yield Finding(
                "HPK-V106",
                path,
                f"directory bucket `{name}` is in zone {lies}, but the subnets are in {', '.join(sorted(zones))}",
                "Use a directory bucket in the nodes' zone: from another zone it is not fast",
                WARNING,
            )


def check_read_only_mounts_not_empty(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A mount that only reads has something to read."""
    for (name, prefix), path in buckets.read_only_prefix_config_paths(settings).items():
        head = value_or_none(facts.buckets.get(name))
        if head is not None and head.exists and value_or_none(facts.empty.get((name, prefix))):
            at = path
            if prefix:
                at = f"{path.rpartition('.')[0]}.prefix"
            yield Finding(
                "HPK-V107",
                at,
                f"s3://{name}/{prefix} has no objects, and the mount is read-only",
                "Correct the prefix, or upload the data before the first job",
                WARNING,
            )
