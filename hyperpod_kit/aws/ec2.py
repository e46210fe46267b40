"""What EC2 says about a network: read-only calls, all pages; errors are ours.

Ids go in as filters and not as arguments: EC2 answers an unknown id among the arguments with an error for all of them.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client

Described = list[dict[str, Any]]


class Ec2:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("ec2", region, connections=connections)

    def subnets(self, ids: Iterable[str]) -> Described:
        """Describe those of the subnets that exist."""
        return self._describe_with_filter("describe_subnets", "Subnets", "subnet-id", ids)

    def security_groups(self, ids: Iterable[str]) -> Described:
        """Describe those of the security groups that exist, with their rules."""
        return self._describe_with_filter("describe_security_groups", "SecurityGroups", "group-id", ids)

    def route_tables(self, vpc_ids: Iterable[str]) -> Described:
        """Describe every route table of the VPCs."""
        return self._describe_with_filter("describe_route_tables", "RouteTables", "vpc-id", vpc_ids)

    def vpc_endpoints(self, vpc_ids: Iterable[str]) -> Described:
        """Describe every endpoint of the VPCs."""
        return self._describe_with_filter("describe_vpc_endpoints", "VpcEndpoints", "vpc-id", vpc_ids)

    def network_interfaces(self, ids: Iterable[str]) -> Described:
        """Describe those of the network interfaces that exist and that this account may see."""
        return self._describe_with_filter(
            "describe_network_interfaces", "NetworkInterfaces", "network-interface-id", ids
        )

    def instance_types(self, types: Iterable[str]) -> Described:
        """Describe instance types, `p5.48xlarge`; those that EC2 does not know are left out."""
        return self._describe_with_filter("describe_instance_types", "InstanceTypes", "instance-type", types)

    def instance_type_offerings(self, types: Iterable[str]) -> set[tuple[str, str]]:
        """Return the (instance type, availability zone id) pairs that EC2 offers of these types."""
        entries = self._describe_with_filter(
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            "instance-type",
            types,
            LocationType="availability-zone-id",
        )
        return {(entry["InstanceType"], entry["Location"]) for entry in entries}

    def dns_attributes(self, vpc_id: str) -> tuple[bool, bool]:
        """Return (enableDnsSupport, enableDnsHostnames) of the VPC."""
        with translate_aws_errors("DescribeVpcAttribute", vpc_id):
            return (
                bool(
                    self._client.describe_vpc_attribute(VpcId=vpc_id, Attribute="enableDnsSupport")["EnableDnsSupport"][
                        "Value"
                    ]
                ),
                bool(
                    self._client.describe_vpc_attribute(VpcId=vpc_id, Attribute="enableDnsHostnames")[
                        "EnableDnsHostnames"
                    ]["Value"]
                ),
            )

    def prefix_list_cidrs(self, prefix_list_id: str) -> list[str]:
        """Return the networks (CIDR) of a prefix list, the account's own or AWS's."""
        with translate_aws_errors("GetManagedPrefixListEntries", prefix_list_id):
            pages = responses.paginate(self._client, "get_managed_prefix_list_entries", PrefixListId=prefix_list_id)
            return [entry["Cidr"] for page in pages for entry in page.get("Entries", [])]

    def _describe_with_filter(
        self, operation: str, key: str, filter_name: str, values: Iterable[str], **more: Any
    ) -> Described:
        ids: Sequence[str] = sorted(set(values))
        if not ids:
            return []
        if len(ids) == 1:
            subject = ids[0]
        else:
            subject = f"of {len(ids)}"
        with translate_aws_errors(_snake_to_camel_case(operation), subject):
            pages = responses.paginate(
                self._client, operation, Filters=[{"Name": filter_name, "Values": list(ids)}], **more
            )
            return [dict(entry) for page in pages for entry in page.get(key, [])]


def _snake_to_camel_case(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))
