"""The bundle's bucket and the buckets of the mounts."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.aws.buckets import zone_of
from hyperpod_kit.config.findings import WARNING, Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.facts import AccountFacts, known
from hyperpod_kit.preflight.queries import buckets


def there(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every bucket exists, and the caller may look into it."""
    for name, path in buckets.wanted(settings).items():
        looked = known(facts.buckets.get(name))
        if looked is None:
            continue
        if not looked.exists:
            yield Finding(
                "HPK-V101",
                path,
                f"there is no bucket `{name}`",
                f"aws s3 mb s3://{name} --region {settings.cluster.region}, or name another bucket",
            )
        elif not looked.allowed:
            yield Finding(
                "HPK-V102",
                path,
                f"bucket `{name}` is there, but {facts.caller.arn} may not look into it",
                f"If it is your account's, allow yourself s3:ListBucket; if it is not, its owner must let the role "
                f"{settings.cluster.execution_role} in",
                WARNING,
            )


def region(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The bundle's bucket is in the cluster's region; a mount's is where the mount says, or in the cluster's."""
    here = settings.cluster.region
    bundle = known(facts.buckets.get(settings.bundle.bucket)) if settings.entry_script else None
    if bundle is not None and bundle.region not in (None, here):
        yield Finding(
            "HPK-V103",
            "hyperpod_kit.bundle.bucket",
            f"bucket `{settings.bundle.bucket}` is in {bundle.region}, the cluster is in {here}",
            "Use a bucket of the cluster's region: SageMaker reads its inputs there",
        )
    for (name, _, path), mount in buckets.places(settings):
        looked = known(facts.buckets.get(name))
        if looked is None or looked.region is None:
            continue
        if mount.region is not None and mount.region != looked.region:
            yield Finding(
                "HPK-V104",
                f"{path.rpartition('.')[0]}.region",
                f"bucket `{name}` is in {looked.region}, the mount asks for it in {mount.region}",
                f"Write {looked.region}, or remove the key: mount-s3 does not look elsewhere when it is told a region",
            )
        elif looked.region != here:
            yield Finding(
                "HPK-V105",
                path,
                f"bucket `{name}` is in {looked.region}, the nodes are in {here}: slower, and paid for by the byte",
                f"Copy what the nodes read into a bucket in {here}",
                WARNING,
            )


def zone(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A directory bucket lies in one zone: the nodes should be there."""
    subnets = known(facts.network.subnets) if facts.network else None
    zones = {subnet.zone for subnet in subnets or ()}
    for (name, _, path), _ in buckets.places(settings):
        lies = zone_of(name)
        if zones and lies is not None and lies not in zones:
            yield Finding(
                "HPK-V106",
                path,
                f"directory bucket `{name}` is in zone {lies}, the subnets are in {', '.join(sorted(zones))}",
                "Use a directory bucket of the nodes' zone: a fast one far away is a slow one",
                WARNING,
            )


def something_to_read(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A mount that only reads has something to read."""
    for (name, prefix), path in buckets.read_prefixes(settings).items():
        looked = known(facts.buckets.get(name))
        if looked is not None and looked.exists and known(facts.empty.get((name, prefix))):
            yield Finding(
                "HPK-V107",
                f"{path.rpartition('.')[0]}.prefix" if prefix else path,
                f"there is nothing in s3://{name}/{prefix}, and the mount only reads",
                "Correct the prefix, or put the data there before the first job",
                WARNING,
            )
