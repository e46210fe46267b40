"""The nodes' network: subnets, routes, endpoints, names, and every security group that something here has."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

from hyperpod_kit.aws.ec2 import Ec2
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import (
    Endpoint,
    InstanceType,
    NetworkFacts,
    NotQueried,
    Queried,
    Route,
    RouteTable,
    Subnet,
)
from hyperpod_kit.preflight.placement import CLUSTER, TYPES, network_placements
from hyperpod_kit.preflight.reachability import SecurityGroup, parse_security_group, referenced_prefix_list_ids

SUBNETS = f"{CLUSTER}.vpc.subnet_ids"
GROUPS = f"{CLUSTER}.vpc.security_group_ids"


def fetch_subnets(client: QueryClient, settings: Settings) -> Queried[tuple[Subnet, ...]]:
    """Describe those of the configuration's subnets that exist."""
    subnet_ids = [subnet for placement in network_placements(settings) for subnet in placement.vpc.subnet_ids]
    if not subnet_ids:
        return ()
    ec2 = client.service_client(Ec2, settings.cluster.region)
    return client.query_or_record_failure(
        "ec2:DescribeSubnets",
        SUBNETS,
        "whether the subnets exist, are private and are in the zones of the file systems",
        lambda: tuple(_parse_subnet(entry) for entry in ec2.subnets(subnet_ids)),
    )


def fetch_network(
    client: QueryClient, settings: Settings, subnet_facts: Queried[tuple[Subnet, ...]], group_ids: Iterable[str]
) -> NetworkFacts:
    """Query route tables, endpoints and DNS attributes of the VPCs of these subnets, and the security groups.

    `group_ids`: security groups of nodes and file systems.
    """
    ec2 = client.service_client(Ec2, settings.cluster.region)
    tables: Queried[tuple[RouteTable, ...]] = ()
    endpoints: Queried[tuple[Endpoint, ...]] = ()
    dns: dict[str, Queried[tuple[bool, bool]]] = {}
    if not isinstance(subnet_facts, NotQueried) and subnet_facts:
        vpcs = sorted({subnet.vpc_id for subnet in subnet_facts})
        tables = client.query_or_record_failure(
            "ec2:DescribeRouteTables",
            SUBNETS,
            "whether the subnets are private and have a route to S3",
            lambda: tuple(_parse_route_table(entry) for entry in ec2.route_tables(vpcs)),
        )
        endpoints = client.query_or_record_failure(
            "ec2:DescribeVpcEndpoints",
            SUBNETS,
            "whether the VPC has endpoints for the services that the nodes use",
            lambda: tuple(_parse_endpoint_without_service_if_unavailable(entry) for entry in ec2.vpc_endpoints(vpcs)),
        )
        for vpc_id in vpcs:
            dns[vpc_id] = client.query_or_record_failure(
                "ec2:DescribeVpcAttribute",
                SUBNETS,
                "whether the VPC resolves the DNS names of file systems",
                lambda vpc_id=vpc_id: ec2.dns_attributes(vpc_id),  # type: ignore[misc]
            )
    return NetworkFacts(
        subnet_facts, tables, endpoints, _fetch_security_groups(client, ec2, sorted(set(group_ids))), dns
    )


def fetch_instance_types(client: QueryClient, settings: Settings) -> Queried[dict[str, InstanceType]]:
    """Describe the configuration's instance types as EC2 knows them; SageMaker's own are not among them."""
    ec2 = client.service_client(Ec2, settings.cluster.region)
    return client.query_or_record_failure(
        "ec2:DescribeInstanceTypes",
        TYPES,
        "which instance types have EFA, for which the security group must allow all traffic within itself",
        lambda: {
            entry["InstanceType"]: _parse_instance_type(entry)
            for entry in ec2.instance_types(ec2_instance_types(settings))
        },
    )


def fetch_offerings(client: QueryClient, settings: Settings) -> Queried[frozenset[tuple[str, str]]]:
    """Query the (instance type, zone) pairs that EC2 offers of the configuration's types."""
    ec2 = client.service_client(Ec2, settings.cluster.region)
    return client.query_or_record_failure(
        "ec2:DescribeInstanceTypeOfferings",
        TYPES,
        "whether the zones of the subnets offer the instance types",
        lambda: frozenset(ec2.instance_type_offerings(ec2_instance_types(settings))),
    )


def ec2_instance_types(settings: Settings) -> list[str]:
    """Return the configuration's instance types as EC2 names them, without `ml.`."""
    return sorted({name.removeprefix("ml.") for group in settings.cluster.groups for name in group.types})


def _fetch_security_groups(
    client: QueryClient, ec2: Ec2, ids: Sequence[str]
) -> dict[str, Queried[Optional[SecurityGroup]]]:
    if not ids:
        return {}
    what = "the rules of the security groups"
    described = client.query_or_record_failure(
        "ec2:DescribeSecurityGroups", GROUPS, what, lambda: ec2.security_groups(ids)
    )
    if isinstance(described, NotQueried):
        return dict.fromkeys(ids, described)
    lists: dict[str, Optional[list[str]]] = {}
    for name in sorted({name for entry in described for name in referenced_prefix_list_ids(entry)}):
        what = f"rules that name prefix list {name}"
        entries = client.query_or_record_failure(
            "ec2:GetManagedPrefixListEntries",
            GROUPS,
            what,
            lambda name=name: ec2.prefix_list_cidrs(name),  # type: ignore[misc]
        )
        if isinstance(entries, NotQueried):
            lists[name] = None
        else:
            lists[name] = entries
    groups_by_id = {entry["GroupId"]: parse_security_group(entry, lists) for entry in described}
    return {group_id: groups_by_id.get(group_id) for group_id in ids}


def _parse_subnet(entry: dict[str, Any]) -> Subnet:
    return Subnet(
        entry["SubnetId"],
        entry["VpcId"],
        entry["AvailabilityZoneId"],
        entry["AvailabilityZone"],
        entry["CidrBlock"],
        int(entry["AvailableIpAddressCount"]),
    )


def _parse_route_table(entry: dict[str, Any]) -> RouteTable:
    links = entry.get("Associations", [])
    return RouteTable(
        entry["RouteTableId"],
        entry["VpcId"],
        any(link.get("Main") for link in links),
        frozenset(link["SubnetId"] for link in links if "SubnetId" in link),
        tuple(_parse_route(route) for route in entry.get("Routes", [])),
    )


TARGETS = (
    "GatewayId",
    "NatGatewayId",
    "TransitGatewayId",
    "EgressOnlyInternetGatewayId",
    "VpcPeeringConnectionId",
    "NetworkInterfaceId",
    "InstanceId",
    "LocalGatewayId",
    "CarrierGatewayId",
    "CoreNetworkArn",
)


def _parse_route(route: dict[str, Any]) -> Route:
    destination = next(
        (
            route[key]
            for key in ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")
            if route.get(key)
        ),
        "",
    )
    target = next((str(route[key]) for key in TARGETS if route.get(key)), "")
    return Route(destination, target, route.get("State", "active") == "active")


def _parse_endpoint_without_service_if_unavailable(entry: dict[str, Any]) -> Endpoint:
    service = entry["ServiceName"].rpartition(".")[2]
    ready = entry.get("State", "available").lower() == "available"
    served = ""
    if ready:
        served = service
    return Endpoint(entry["VpcId"], served, entry.get("VpcEndpointType", "Gateway"))


def _parse_instance_type(entry: dict[str, Any]) -> InstanceType:
    return InstanceType(entry["InstanceType"], bool(entry.get("NetworkInfo", {}).get("EfaSupported")))
