"""Subnets: they exist, in one VPC, private, with a way to S3 and room for the nodes; names resolve in them."""

from __future__ import annotations

from typing import Iterator, Sequence

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.secrets import ARN
from hyperpod_kit.preflight.aws_facts.network import SUBNETS
from hyperpod_kit.preflight.facts import NOT_QUERIED, AccountFacts, Endpoint, RouteTable, Subnet, value_or_none
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.placement import TYPES, network_placements, subnet_config_path
from hyperpod_kit.untrusted.text import counted

EVERYWHERE = ("0.0.0.0/0", "::/0")


def check_subnets_and_groups_exist(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Check that every subnet and security group exists."""
    network, region = facts.network, settings.cluster.region
    subnets = facts.known_subnets
    existing_ids = {subnet.id for subnet in subnets or ()}
    for placement in network_placements(settings):
        for index, subnet_id in enumerate(placement.vpc.subnet_ids):
            if subnets is not None and subnet_id not in existing_ids:
                yield Finding(
                    "HPK-V301",
                    f"{placement.subnets_config_path}[{index}]",
                    f"this account sees no subnet `{subnet_id}` in {region}",
                    f"aws ec2 describe-subnets --region {region} lists them",
                )
        for index, group_id in enumerate(placement.vpc.security_group_ids):
            if network is not None and network.groups.get(group_id, NOT_QUERIED) is None:
                yield Finding(
                    "HPK-V302",
                    f"{placement.security_groups_config_path}[{index}]",
                    f"this account sees no security group `{group_id}` in {region}",
                    f"aws ec2 describe-security-groups --region {region} lists them",
                )


def check_one_vpc(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Subnets and security groups belong to one VPC."""
    if facts.network is None:
        return
    owners = {subnet.id: subnet.vpc_id for subnet in value_or_none(facts.network.subnets) or ()}
    for placement in network_placements(settings):
        for group_id in placement.vpc.security_group_ids:
            group = facts.network.security_group_if_known(group_id)
            if group is not None:
                owners[group_id] = group.vpc_id
    if len(set(owners.values())) > 1:
        listed = ", ".join(f"{name} of {owner}" for name, owner in owners.items())
        yield Finding(
            "HPK-V303",
            network_placements(settings)[0].path,
            f"subnets and security groups are in different VPCs: {listed}",
            "Choose all of them from one VPC",
        )


def check_subnets_private(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """No subnet sends what leaves it to an internet gateway: nodes have no public address and would reach nothing."""
    for path, subnet, table in _subnets_with_route_tables(settings, facts):
        for route in table.routes:
            if route.active and route.destination in EVERYWHERE and route.target.startswith("igw-"):
                yield Finding(
                    "HPK-V304",
                    path,
                    f"{subnet.id} is a public subnet: {table.id} sends {route.destination} to {route.target}",
                    "Use a private subnet, whose route table has a NAT gateway: nodes have no public address",
                )
                break


def check_route_tables_visible(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every subnet's route table is visible; those of a subnet that another account shares are not."""
    subnets = facts.known_subnets
    tables = value_or_none(facts.network.tables) if facts.network else None
    judged = {subnet.id for _, subnet, _ in _subnets_with_route_tables(settings, facts)}
    for subnet in subnets or ():
        path = subnet_config_path(settings, subnet.id)
        if tables is not None and subnet.id not in judged and path is not None:
            yield Finding(
                "HPK-V314",
                path,
                f"not checked: whether {subnet.id} is private and has a route to S3 (its route table is "
                "not visible; the subnet may belong to another account)",
                "Ask the owner of the VPC, or run the same command with their credentials",
                WARNING,
            )


def check_s3_route(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A node fetches its bundle from S3: by a route, or through an endpoint of S3, and its groups let it."""
    network = facts.network
    endpoints = facts.known_endpoints
    if network is None or endpoints is None or not do_nodes_need_s3(settings):
        return
    for path, subnet, table in _subnets_with_route_tables(settings, facts):
        if (
            not _has_default_route_without_igw(table)
            and not _has_s3_endpoint(table, endpoints, subnet.vpc_id)
            and not _is_public(table)
        ):
            yield Finding(
                "HPK-V305",
                path,
                f"{subnet.id} has no route to S3: route table {table.id} has no default route, and the VPC "
                "has no S3 endpoint for it",
                f"Add a gateway endpoint for S3 to {table.id} (aws ec2 create-vpc-endpoint), or a NAT gateway",
            )


def check_service_endpoints(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Where nothing leads out, what nodes fetch besides S3 has an endpoint."""
    network = facts.network
    endpoints = facts.known_endpoints
    if network is None or endpoints is None:
        return
    path_of_service = {
        secret.service: f"hyperpod_kit.secrets[{index}]"
        for index, secret in enumerate(settings.secrets)
        if ARN.fullmatch(secret.arn)
    }
    urls = [index for index, listed in enumerate(settings.packages) if listed.package.url]
    for _, subnet, table in _subnets_with_route_tables(settings, facts):
        if _has_default_route_without_igw(table) or _is_public(table):
            continue
        have = {endpoint.service for endpoint in endpoints if endpoint.vpc_id == subnet.vpc_id}
        for service, path in path_of_service.items():
            if service not in have:
                yield Finding(
                    "HPK-V306",
                    path,
                    (
                        f"{subnet.id} has no route to {service}: it has no default route, and the VPC has no "
                        "endpoint for the service"
                    ),
                    f"Add an interface endpoint for {service} to the VPC, or a NAT gateway",
                    WARNING,
                )
        if urls:
            yield Finding(
                "HPK-V307",
                f"hyperpod_kit.clients[{urls[0]}].url",
                f"{subnet.id} has no route to the internet, from which nodes would download the package",
                "Put the package into the bundle: use `file` instead of `url`",
                WARNING,
            )


def check_vpc_dns_enabled(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The VPC resolves names and has host names: file systems are mounted by name."""
    by_name = [mount for mount in settings.mounts if mount.traits.in_vpc]
    if facts.network is None or not by_name:
        return
    for vpc_id, queried in facts.network.dns.items():
        dns = value_or_none(queried)
        missing = [
            word
            for word, enabled in zip(("enableDnsSupport", "enableDnsHostnames"), dns or (True, True))
            if not enabled
        ]
        if missing:
            yield Finding(
                "HPK-V308",
                SUBNETS,
                f"{' and '.join(missing)} is off in {vpc_id}: nodes cannot resolve the DNS names of file systems",
                f"aws ec2 modify-vpc-attribute --vpc-id {vpc_id} --{_modify_vpc_option(missing[0])}",
            )


def check_free_addresses(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The subnets have an address for each node that there is not yet; some types take more than one."""
    subnets = facts.known_subnets
    running = sum((value_or_none(facts.used) or {}).get(settings.cluster.name, {}).values())
    everywhere = network_placements(settings)
    if not subnets or (running and len(everywhere) > 1):
        return  # which network the running nodes are in is not known
    for placement in everywhere:
        free = sum(subnet.free for subnet in subnets if subnet.id in placement.vpc.subnet_ids)
        if placement.node_count - running > free:
            yield Finding(
                "HPK-V309",
                placement.subnets_config_path,
                f"the subnets have {counted(free, 'free address', 'free addresses')}, too few for "
                f"{counted(placement.node_count - running, 'more node')}",
                "Use larger subnets, or free addresses",
            )


def check_instance_type_zones(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Warn when EC2 does not offer an instance type in a zone of the subnets; SageMaker's own capacity may
    differ."""
    subnets = facts.known_subnets
    offered, types = value_or_none(facts.offered), value_or_none(facts.types)
    if not subnets or offered is None or types is None:
        return
    reported: set[str] = set()
    for placement in network_placements(settings):
        have = {subnet.zone for subnet in subnets if subnet.id in placement.vpc.subnet_ids}
        for group in placement.groups:
            for name in (name.removeprefix("ml.") for name in group.types):
                where = sorted(zone for kind, zone in offered if kind == name)
                if name not in types or not have or have & set(where) or name in reported:
                    continue
                reported.add(name)
                yield Finding(
                    "HPK-V310",
                    f"{TYPES}[{settings.cluster.groups.index(group)}].{group.types_key}",
                    f"EC2 offers {name} in {', '.join(where) or 'no zone of the region'}, but the subnets "
                    f"are in {', '.join(sorted(have))}",
                    "Use a subnet in a zone that offers it",
                    WARNING,
                )


def do_nodes_need_s3(settings: Settings) -> bool:
    """Whether nodes fetch anything from S3: a bundle, or what a bucket mount shows."""
    return bool(settings.entry_script) or any(INQUIRIES[mount.kind].bucket is not None for mount in settings.mounts)


def _subnets_with_route_tables(settings: Settings, facts: AccountFacts) -> Iterator[tuple[str, Subnet, RouteTable]]:
    """Yield each subnet with its path and its route table: its own, or the main one of its VPC."""
    network = facts.network
    if network is None:
        return
    tables = value_or_none(network.tables) or ()
    for subnet in value_or_none(network.subnets) or ():
        subnet_table = next((table for table in tables if subnet.id in table.subnets), None)
        main = next((table for table in tables if table.main and table.vpc_id == subnet.vpc_id), None)
        table, path = subnet_table or main, subnet_config_path(settings, subnet.id)
        if table is not None and path is not None:
            yield path, subnet, table


def _is_public(table: RouteTable) -> bool:
    return any(
        route.active and route.destination in EVERYWHERE and route.target.startswith("igw-") for route in table.routes
    )


def _has_default_route_without_igw(table: RouteTable) -> bool:
    return any(
        route.active and route.destination == EVERYWHERE[0] and not _is_local_or_internet_gateway(route.target)
        for route in table.routes
    )


def _is_local_or_internet_gateway(target: str) -> bool:
    return target in ("local", "") or target.startswith(("igw-", "eigw-"))


def _has_s3_endpoint(table: RouteTable, endpoints: Sequence[Endpoint], vpc_id: str) -> bool:
    """Whether an S3 endpoint serves the table: a gateway endpoint is a route to a prefix list, an interface
    endpoint serves the whole VPC."""
    by_list = any(route.active and route.destination.startswith("pl-") for route in table.routes)
    return by_list or any(
        endpoint.vpc_id == vpc_id and endpoint.service == "s3" and endpoint.kind == "Interface"
        for endpoint in endpoints
    )


def _modify_vpc_option(attribute: str) -> str:
    if attribute == "enableDnsSupport":
        return "enable-dns-support"
    return "enable-dns-hostnames"
