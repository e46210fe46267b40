"""The network: one VPC, a private subnet for each that the configuration names, a way out, and S3 without a detour.

Nodes have no public address: a NAT gateway in a public subnet leads out, a gateway endpoint leads to S3, which costs
nothing. Names resolve, because file systems are mounted by name.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import UsageError
from hyperpod_kit.infra.part import TemplatePart, get_att, name_tags, ref, resource
from hyperpod_kit.preflight.placement import network_placements

BLOCK = IPv4Network("10.0.0.0/16")
"""Addresses of the VPC; AWS gives no VPC more."""

PREFIXES = (18, 19, 20)
"""Sizes of a node's subnet, the largest first: 16,379 addresses, 8,187, 4,091."""


def configured_subnet_ids(settings: Settings) -> list[str]:
    """Return every subnet id that the configuration names, once."""
    named = [name for placement in network_placements(settings) for name in placement.vpc.subnet_ids]
    return list(dict.fromkeys(named))


def allocate_subnet_blocks(count: int) -> tuple[list[IPv4Network], IPv4Network]:
    """Return CIDR blocks for `count` private subnets, and one for the public subnet. Raises UsageError when they
    do not fit."""
    for prefix in PREFIXES:
        subnets = list(BLOCK.subnets(new_prefix=prefix))
        if count < len(subnets):
            return subnets[:count], next(subnets[-1].subnets(new_prefix=24))
    raise UsageError(
        f"the configuration names {count} subnets; a template has at most {2 ** (PREFIXES[-1] - BLOCK.prefixlen) - 1}",
        hint="one subnet a zone is enough: all nodes of a job should be in one zone",
    )


def network_part(settings: Settings) -> TemplatePart:
    """Return the VPC with everything in it but security groups. Raises UsageError."""
    name = settings.cluster.name
    names = configured_subnet_ids(settings)
    private, public = allocate_subnet_blocks(len(names))
    resources: dict[str, Any] = {
        "Vpc": resource(
            "AWS::EC2::VPC",
            {"CidrBlock": str(BLOCK), "EnableDnsSupport": True, "EnableDnsHostnames": True, "Tags": name_tags(name)},
        ),
        "InternetGateway": resource("AWS::EC2::InternetGateway", {"Tags": name_tags(name)}),
        "InternetGatewayAttachment": resource(
            "AWS::EC2::VPCGatewayAttachment", {"VpcId": ref("Vpc"), "InternetGatewayId": ref("InternetGateway")}
        ),
        "PublicSubnet": _subnet_resource(f"{name} public", public, "Zone1"),
        "NatAddress": resource("AWS::EC2::EIP", {"Domain": "vpc"}, DependsOn="InternetGatewayAttachment"),
        "Nat": resource(
            "AWS::EC2::NatGateway",
            {
                "AllocationId": get_att("AllocationId", "NatAddress"),
                "SubnetId": ref("PublicSubnet"),
                "Tags": name_tags(name),
            },
        ),
        "PublicRoutes": _route_table_resource(f"{name} public"),
        "PublicDefaultRoute": resource(
            "AWS::EC2::Route",
            {
                "RouteTableId": ref("PublicRoutes"),
                "DestinationCidrBlock": "0.0.0.0/0",
                "GatewayId": ref("InternetGateway"),
            },
            DependsOn="InternetGatewayAttachment",
        ),
        "PublicSubnetRoutes": _route_table_association("PublicSubnet", "PublicRoutes"),
        "Routes": _route_table_resource(f"{name} nodes"),
        "DefaultRoute": resource(
            "AWS::EC2::Route",
            {"RouteTableId": ref("Routes"), "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": ref("Nat")},
        ),
        "S3Endpoint": resource(
            "AWS::EC2::VPCEndpoint",
            {
                "VpcId": ref("Vpc"),
                "ServiceName": {"Fn::Sub": "com.amazonaws.${AWS::Region}.s3"},
                "VpcEndpointType": "Gateway",
                "RouteTableIds": [ref("Routes")],
            },
        ),
    }
    for index, block in enumerate(private, 1):
        resources[f"Subnet{index}"] = _subnet_resource(f"{name} nodes {index}", block, f"Zone{index}")
        resources[f"Subnet{index}Routes"] = _route_table_association(f"Subnet{index}", "Routes")
    return TemplatePart(
        "network",
        tuple(placement.subnets_config_path for placement in network_placements(settings)),
        resources,
        {
            f"Zone{index}": {
                "Type": "AWS::EC2::AvailabilityZone::Name",
                "Description": f"Where the capacity is: the zone of what the configuration calls {subnet}.",
            }
            for index, subnet in enumerate(names, 1)
        },
        _subnet_refs_by_path(settings, names),
    )


def _subnet_refs_by_path(settings: Settings, names: list[str]) -> dict[str, Any]:
    """Return place of each subnet in the configuration -> reference to the subnet that is made."""
    return {
        f"{placement.subnets_config_path}[{index}]": ref(f"Subnet{names.index(subnet) + 1}")
        for placement in network_placements(settings)
        for index, subnet in enumerate(placement.vpc.subnet_ids)
    }


def _subnet_resource(name: str, block: IPv4Network, zone: str) -> Any:
    return resource(
        "AWS::EC2::Subnet",
        {"VpcId": ref("Vpc"), "CidrBlock": str(block), "AvailabilityZone": ref(zone), "Tags": name_tags(name)},
    )


def _route_table_resource(name: str) -> Any:
    return resource("AWS::EC2::RouteTable", {"VpcId": ref("Vpc"), "Tags": name_tags(name)})


def _route_table_association(subnet: str, table: str) -> Any:
    return resource("AWS::EC2::SubnetRouteTableAssociation", {"SubnetId": ref(subnet), "RouteTableId": ref(table)})
