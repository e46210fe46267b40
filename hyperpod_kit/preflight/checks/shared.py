"""EFS and S3 Files: they exist, each zone of the nodes has a mount target that lets them in, access points fit."""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.checks.endpoints import find_ports_blocked_to_endpoints, format_ports
from hyperpod_kit.preflight.facts import NOT_QUERIED, AccountFacts, FileSystem, NotQueried, Subnet, value_or_none
from hyperpod_kit.preflight.mounts.inquiry import SharedService
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.mounts.shared_file_systems import FileSystemQuery, file_system_facts, file_system_queries
from hyperpod_kit.preflight.placement import carrying_subnet_ids

NFS = 2049
READY = ("available", "updating")


class ExistingFileSystem(NamedTuple):
    """A file system that is there, as the configuration names it. `service`: aws's word for it."""

    requested: FileSystemQuery
    system: FileSystem
    service: str


def check_file_systems_exist_and_available(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every file system exists and is ready."""
    for kind, service in _kinds_with_shared_service():
        for requested in file_system_queries(settings, kind):
            system = facts.file_systems.get(kind, {}).get((requested.region, requested.id), NOT_QUERIED)
            if system is None:
                yield Finding(
                    "HPK-V401",
                    requested.path,
                    f"{service.name} file system `{requested.id}` does not exist in {requested.region}",
                    f"{service.listing} --region {requested.region} lists them",
                )
            elif isinstance(system, FileSystem) and system.state.lower() not in READY:
                yield Finding(
                    "HPK-V402",
                    requested.path,
                    f"{requested.id} is {system.state.lower()}",
                    "Wait until it is available, then repeat the check",
                )


def check_mount_target_in_each_node_zone(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Each zone of the nodes has a mount target in their VPC: the file system's name resolves in no other zone."""
    for existing in _existing_systems(settings, facts):
        endpoints, subnets = value_or_none(existing.system.endpoints), _carrying_subnets(settings, facts, existing)
        if endpoints is None or not subnets or existing.requested.region != settings.cluster.region:
            continue
        vpcs, names = {subnet.vpc_id for subnet in subnets}, {subnet.zone: subnet.zone_name for subnet in subnets}
        vpc_endpoints = [endpoint for endpoint in endpoints if endpoint.vpc_id in vpcs]
        if endpoints and not vpc_endpoints:
            other_vpcs = ", ".join(sorted({endpoint.vpc_id for endpoint in endpoints}))
            yield Finding(
                "HPK-V404",
                existing.requested.path,
                f"the mount targets of {existing.requested.id} are in {other_vpcs}, but the nodes are in "
                f"{', '.join(sorted(vpcs))}",
                "Use a file system in the nodes' VPC, or create its mount targets there",
            )
            continue
        missing = sorted(set(names) - {endpoint.zone for endpoint in vpc_endpoints if endpoint.ready})
        if missing:
            if existing.system.zone:
                one_zone = f", a One Zone file system of {existing.system.zone},"
                hint = "Use subnets in its zone only"
            else:
                one_zone = ""
                hint = f"aws {existing.service} create-mount-target for a subnet of each of these zones"
            yield Finding(
                "HPK-V403",
                existing.requested.path,
                f"{existing.requested.id}{one_zone} has no available mount target in "
                f"{', '.join(f'{names[zone]} ({zone})' for zone in missing)}, where nodes would be",
                hint,
            )


def check_nfs_port(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Security groups let NFS through, out of the nodes and into the mount targets of their zones."""
    for existing in _existing_systems(settings, facts):
        zones = {(subnet.vpc_id, subnet.zone) for subnet in _carrying_subnets(settings, facts, existing)}
        near = [
            endpoint
            for endpoint in value_or_none(existing.system.endpoints) or ()
            if (endpoint.vpc_id, endpoint.zone) in zones
        ]
        for shut in find_ports_blocked_to_endpoints(settings, facts, existing.requested.mounts, near, (NFS,)):
            group = "the mount target's security group"
            if shut.groups:
                group = shut.groups[0]
            yield Finding(
                "HPK-V405",
                existing.requested.path,
                f"TCP {format_ports(shut.ports)} is blocked: {shut.where}",
                f"Allow it in {group}",
            )


def check_access_points_exist_and_match(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every access point exists, is ready and belongs to the file system that is mounted through it."""
    for written, written_at in settings.sourced_mounts:
        mount: Any = written
        if mount.access_point_id is None:
            continue
        system = file_system_facts(settings, facts, mount)
        if system is None or mount.access_point_id not in system.points:
            continue
        point = system.points[mount.access_point_id]
        if written_at.endswith(".homes"):
            at = written_at
        else:
            at = f"{written_at}.access_point_id"
        if point is None:
            yield Finding(
                "HPK-V406",
                at,
                f"access point `{mount.access_point_id}` does not exist",
                (
                    "hyperpod-kit users apply creates the access points of homes; for others see aws efs "
                    "describe-access-points"
                ),
            )
        elif isinstance(point, NotQueried):
            continue
        elif point.file_system_id != mount.file_system_id:
            yield Finding(
                "HPK-V407",
                at,
                f"access point `{mount.access_point_id}` belongs to {point.file_system_id}, not to {system.id}",
                "Write the file system that it belongs to, or another access point",
            )
        elif not point.ready:
            yield Finding(
                "HPK-V408",
                at,
                f"access point `{mount.access_point_id}` is not available",
                "Wait, or create another one",
            )


def _kinds_with_shared_service() -> list[tuple[str, SharedService]]:
    """Return the kinds of mounts that have such file systems, with their services."""
    return [(kind, its.shared) for kind, its in INQUIRIES.items() if its.shared is not None]


def _existing_systems(settings: Settings, facts: AccountFacts) -> Iterator[ExistingFileSystem]:
    for kind, service in _kinds_with_shared_service():
        for requested in file_system_queries(settings, kind):
            system = value_or_none(facts.file_systems.get(kind, {}).get((requested.region, requested.id)))
            if system is not None:
                yield ExistingFileSystem(requested, system, service.word)


def _carrying_subnets(settings: Settings, facts: AccountFacts, existing: ExistingFileSystem) -> list[Subnet]:
    """Return the subnets of the nodes that carry a mount of the file system."""
    ids = carrying_subnet_ids(settings, existing.requested.mounts)
    return [subnet for subnet in facts.known_subnets or () if subnet.id in ids]
