"""FSx: the file system of the DNS name exists, is what the mount says, and the nodes get to it."""

from __future__ import annotations

from typing import Any, Iterable, Iterator

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.aws_facts import fsx
from hyperpod_kit.preflight.checks.endpoints import (
    find_ports_blocked_from_endpoints,
    find_ports_blocked_to_endpoints,
    format_ports,
)
from hyperpod_kit.preflight.facts import NOT_QUERIED, AccountFacts, FsxFileSystem, value_or_none
from hyperpod_kit.preflight.mounts.inquiry import FsxType
from hyperpod_kit.preflight.mounts.lustre import EFA_CAPACITY_STEPS
from hyperpod_kit.preflight.placement import carrying_subnet_ids, network_placements
from hyperpod_kit.preflight.reachability import SecurityGroup, admits_all_traffic_from_any_group

READY = ("AVAILABLE", "UPDATING", "MISCONFIGURED")
"""MISCONFIGURED serves its clients, with something else not right; MISCONFIGURED_UNAVAILABLE does not."""


def check_file_systems_exist_and_available(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every file system exists and is ready."""
    for requested in fsx.file_system_queries(settings):
        system = facts.fsx.get((requested.region, requested.id), NOT_QUERIED)
        if system is None:
            yield Finding(
                "HPK-V501",
                requested.path,
                f"FSx file system `{requested.id}` does not exist in {requested.region}",
                f"aws fsx describe-file-systems --region {requested.region} lists them",
            )
        elif isinstance(system, FsxFileSystem) and system.state not in READY:
            yield Finding(
                "HPK-V502",
                requested.path,
                f"{requested.id} is {system.state.lower()}",
                "Wait until it is available, then repeat the check",
            )


def check_type_and_names_match(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Kind, DNS name, mount name and volume are the file system's own."""
    for its, mount, at, at_name, system in _mounts_of_existing_file_systems(settings, facts):
        if system.kind != its.name:
            yield Finding(
                "HPK-V503",
                at,
                f"{system.id} is an FSx file system of type {system.kind}, but the mount's kind is {mount.kind}",
                "Correct the kind of the mount, or name another file system",
            )
            continue
        if system.dns_name and mount.dns_name.lower() != system.dns_name.lower():
            yield Finding(
                "HPK-V504",
                at,
                f"the DNS name of {system.id} is {system.dns_name}, not {mount.dns_name}",
                f"Write {system.dns_name}",
            )
        yield from its.differs(mount, at_name, system)


def check_vpc_and_zones(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The file system is in the nodes' VPC, and best in their zone."""
    everywhere = facts.known_subnets
    for _, mount, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        ids = carrying_subnet_ids(settings, [mount])
        subnets = [subnet for subnet in everywhere or () if subnet.id in ids]
        vpcs, zones = {subnet.vpc_id for subnet in subnets}, {subnet.zone for subnet in subnets}
        if vpcs and system.vpc_id and system.vpc_id not in vpcs:
            yield Finding(
                "HPK-V507",
                at,
                f"{system.id} is in {system.vpc_id}, but the nodes are in {', '.join(sorted(vpcs))}",
                "Use a file system in the nodes' VPC",
            )
            continue
        system_zones = {endpoint.zone for endpoint in value_or_none(system.endpoints) or () if endpoint.zone}
        apart, lies = ", ".join(sorted(zones - system_zones)), ", ".join(sorted(system_zones))
        if not system_zones or not apart:
            continue
        if mount.efa:
            yield Finding(
                "HPK-V512",
                at,
                f"{system.id} is in zone {lies}, but nodes would also be in {apart}: EFA works within one zone only",
                "Use subnets of the file system's zone",
            )
        else:
            yield Finding(
                "HPK-V508",
                at,
                f"{system.id} is in zone {lies}, but nodes would also be in {apart}: access from there is "
                "slower, and AWS charges for each byte",
                "Use subnets in its zone for nodes that read much",
                WARNING,
            )


def check_file_system_has_wanted_efa(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A mount that wants EFA has a file system that has it."""
    for its, mount, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        if mount.efa and system.kind == its.name and not system.efa:
            efa_path = at
            if at.endswith(".dns_name"):
                efa_path = f"{at.removesuffix('.dns_name')}.efa"
            yield Finding(
                "HPK-V509",
                efa_path,
                f"{system.id} was created without EFA, but the mount has efa set",
                "Set efa to false, or use a file system with EfaEnabled, which can be set only at creation",
            )


def check_efa_capacity(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A file system with EFA has a capacity that FSx makes with EFA."""
    for its, mount, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        step = EFA_CAPACITY_STEPS.get(system.throughput_per_tib)
        if not (mount.efa and system.efa and system.kind == its.name) or step is None or not system.capacity_gib:
            continue
        if system.capacity_gib % step:
            yield Finding(
                "HPK-V514",
                at,
                f"{system.id} has {system.capacity_gib} GiB at {system.throughput_per_tib} MB/s per TiB: "
                f"with EFA, FSx creates multiples of {step} GiB",
                "Create a file system of such a size, or set efa to false",
            )


def check_efa_traffic(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Of a file system with EFA the security groups pass all traffic: among itself, and with the nodes, both ways.

    Rules that name networks do not count: an EFA's own traffic is no IP traffic.
    """
    checked_ids: set[str] = set()
    for its, mount, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        endpoints = value_or_none(system.endpoints)
        if not (mount.efa and system.efa and endpoints and system.kind == its.name) or system.id in checked_ids:
            continue
        checked_ids.add(system.id)
        of_system = _known_groups(facts, value_or_none(endpoints[0].groups) or ())
        of_nodes = _known_groups(
            facts,
            [
                name
                for placement in network_placements(settings)
                if placement.has_node_with_any_mount([mount])
                for name in placement.vpc.security_group_ids
            ],
        )
        if not of_system or not of_nodes:
            continue  # said already: nobody can see them
        pairs = ((of_system, of_system), (of_system, of_nodes), (of_nodes, of_system))
        missing = [line for groups, peers in pairs for line in _directions_without_all_traffic(groups, peers)]
        if missing:
            yield Finding(
                "HPK-V515",
                at,
                f"{system.id} has EFA, but not all traffic is allowed: {'; '.join(dict.fromkeys(missing))}",
                "Add rules of protocol -1 that name these groups, as `hyperpod-kit infra template` does",
            )


def _known_groups(facts: AccountFacts, names: Iterable[str]) -> list[SecurityGroup]:
    if facts.network is None:
        return []
    groups = (facts.network.security_group_if_known(name) for name in dict.fromkeys(names))
    return [group for group in groups if group is not None]


def _directions_without_all_traffic(groups: list[SecurityGroup], peers: list[SecurityGroup]) -> Iterator[str]:
    names = [peer.id for peer in peers]
    directions = (("in from", "ingress"), ("out to", "egress"))
    for words, side in directions:
        rules = [rule for group in groups for rule in getattr(group, side)]
        if not admits_all_traffic_from_any_group(rules, names):
            yield f"{', '.join(group.id for group in groups)} {words} {', '.join(names)}"


def check_interfaces_visible(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The network interfaces and their security groups are visible; those of another account are not."""
    for _, _, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        endpoints = value_or_none(system.endpoints)
        if endpoints is None or facts.network is None:
            continue
        groups = [name for endpoint in endpoints for name in value_or_none(endpoint.groups) or ()]
        if not endpoints or any(facts.network.groups.get(name, NOT_QUERIED) is None for name in groups):
            yield Finding(
                "HPK-V513",
                at,
                f"not checked: whether the security groups of {system.id} admit the nodes (its network "
                "interfaces or their groups are not visible; they may belong to another account)",
                "Ask its owner, or run the same command with their credentials",
                WARNING,
            )


def check_ports(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Security groups let the protocol through, from the nodes to the file system and for Lustre back again."""
    checked_ids: set[str] = set()
    for its, mount, at, _, system in _mounts_of_existing_file_systems(settings, facts):
        endpoints = value_or_none(system.endpoints)
        if not endpoints or system.id in checked_ids:
            continue
        checked_ids.add(system.id)
        # All interfaces of a file system have its security groups: one of them stands for all.
        all_blocked = list(find_ports_blocked_to_endpoints(settings, facts, [mount], endpoints[:1], its.ports))
        for blocked in all_blocked:
            group = "a security group of the file system"
            if blocked.groups:
                group = blocked.groups[0]
            yield Finding(
                "HPK-V510",
                at,
                f"TCP {format_ports(blocked.ports)} is blocked: {blocked.where}",
                f"Allow it in {group}",
            )
        if its.both_ways and not all_blocked:
            for blocked in find_ports_blocked_from_endpoints(settings, facts, [mount], endpoints[:1], its.ports):
                group = "a security group of the file system"
                if blocked.groups:
                    group = blocked.groups[0]
                yield Finding(
                    "HPK-V511",
                    at,
                    f"TCP {format_ports(blocked.ports)} is blocked: {blocked.where}; Lustre's servers also "
                    "connect to clients",
                    f"Allow it in {group}",
                    WARNING,
                )


def _mounts_of_existing_file_systems(
    settings: Settings, facts: AccountFacts
) -> Iterator[tuple[FsxType, Any, str, str, FsxFileSystem]]:
    """Every FSx mount whose file system is there, with the paths of its DNS name and of its mount name or export."""
    for its, mount, at, at_name in fsx.fsx_mounts_with_config_paths(settings):
        system = value_or_none(facts.fsx.get(fsx.parse_fsx_region_and_id(mount.dns_name, settings.cluster.region)))
        if system is not None:
            yield its, mount, at, at_name, system
