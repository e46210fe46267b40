"""Whether security groups let one set of network interfaces reach another. Pure: rules in, verdicts out.

A rule admits a peer by a security group that the peer has, by networks that cover its addresses, or by a prefix list
that does. Rules add up: two networks that cover a subnet half each cover it. IPv4, which every mount here uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses
from typing import Any, Iterable, Mapping, Optional, Sequence

ALL = "-1"
"""EC2's word for every protocol."""
TCP = ("tcp", "6", ALL)


@dataclass(frozen=True)
class SecurityRule:
    """One rule, of either direction. `ports`: None for all; unread: it names a prefix list that nobody could read."""

    protocol: str
    ports: Optional[tuple[int, int]]
    groups: frozenset[str]
    networks: tuple[IPv4Network, ...]
    unread: bool = False

    def covers_protocol_and_port(self, protocol: str, port: Optional[int]) -> bool:
        """Whether the rule is about this port of TCP, or (`-1`, None) about all traffic."""
        if protocol == ALL:
            return self.protocol == ALL
        return self.protocol in TCP and (
            self.protocol == ALL or self.ports is None or (port is not None and self.ports[0] <= port <= self.ports[1])
        )


@dataclass(frozen=True)
class SecurityGroup:
    """A group with its rules of both directions."""

    id: str
    vpc_id: str
    ingress: tuple[SecurityRule, ...]
    egress: tuple[SecurityRule, ...]


@dataclass(frozen=True)
class Peer:
    """Interfaces that have all of `groups` and an address in one of `networks`."""

    groups: frozenset[str]
    networks: tuple[IPv4Network, ...]


def missing_ports_or_none_if_unknown(
    rules: Iterable[SecurityRule], peer: Peer, ports: Sequence[int]
) -> Optional[list[int]]:
    """Return the TCP ports on which the rules do not admit all of the peer; None when that depends on an unread
    list."""
    given = tuple(rules)
    missing = [port for port in ports if not _admits_whole_peer(given, peer, "tcp", port)]
    if any(rule.unread and rule.covers_protocol_and_port("tcp", port) for rule in given for port in missing):
        return None
    return missing


def admits_all_traffic_from_any_group(rules: Iterable[SecurityRule], groups: Iterable[str]) -> bool:
    """Whether one of the rules admits all traffic of one of these groups, by naming the group.

    Traffic of an EFA that bypasses the operating system is no IP traffic: rules with networks do not admit it.
    """
    accepted_groups = set(groups)
    return any(rule.covers_protocol_and_port(ALL, None) and rule.groups & accepted_groups for rule in rules)


def parse_security_group(
    described: Mapping[str, Any], networks_by_prefix_list: Mapping[str, Optional[Sequence[str]]]
) -> SecurityGroup:
    """Parse one entry of DescribeSecurityGroups.

    `networks_by_prefix_list`: networks of each prefix list, None where it could not be read.
    """
    return SecurityGroup(
        described["GroupId"],
        described.get("VpcId", ""),
        tuple(_parse_rule(entry, networks_by_prefix_list) for entry in described.get("IpPermissions", [])),
        tuple(_parse_rule(entry, networks_by_prefix_list) for entry in described.get("IpPermissionsEgress", [])),
    )


def referenced_prefix_list_ids(described: Mapping[str, Any]) -> set[str]:
    """Return the ids of the prefix lists that the rules of one entry of DescribeSecurityGroups name."""
    return {
        entry["PrefixListId"]
        for permission in (*described.get("IpPermissions", []), *described.get("IpPermissionsEgress", []))
        for entry in permission.get("PrefixListIds", [])
    }


def _admits_whole_peer(rules: Sequence[SecurityRule], peer: Peer, protocol: str, port: int) -> bool:
    fitting = [rule for rule in rules if rule.covers_protocol_and_port(protocol, port)]
    if any(rule.groups & peer.groups for rule in fitting):
        return True
    covered = list(collapse_addresses(network for rule in fitting for network in rule.networks))
    return bool(peer.networks) and all(any(net.subnet_of(wide) for wide in covered) for net in peer.networks)


def _parse_rule(
    entry: Mapping[str, Any], networks_by_prefix_list: Mapping[str, Optional[Sequence[str]]]
) -> SecurityRule:
    low, high = entry.get("FromPort"), entry.get("ToPort")
    named = [networks_by_prefix_list.get(item["PrefixListId"]) for item in entry.get("PrefixListIds", [])]
    cidrs = [item["CidrIp"] for item in entry.get("IpRanges", [])]
    for networks in named:
        cidrs += [cidr for cidr in networks or () if ":" not in cidr]
    return SecurityRule(
        str(entry.get("IpProtocol", ALL)),
        None if low is None or high is None or low == -1 else (int(low), int(high)),
        frozenset(pair["GroupId"] for pair in entry.get("UserIdGroupPairs", []) if "GroupId" in pair),
        tuple(IPv4Network(cidr, strict=False) for cidr in cidrs),
        unread=any(networks is None for networks in named),
    )
