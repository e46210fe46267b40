"""Security groups of the nodes: they reach each other, their EFAs do too, and S3 is within reach."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Iterator, NamedTuple

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.checks.network import do_nodes_need_s3
from hyperpod_kit.preflight.facts import AccountFacts, value_or_none
from hyperpod_kit.preflight.placement import NetworkPlacement, network_placements
from hyperpod_kit.preflight.reachability import (
    Peer,
    SecurityRule,
    admits_all_traffic_from_any_group,
    missing_ports_or_none_if_unknown,
)

SLURM_PORTS = (22, 6817, 6818, 32768, 60999)
"""ssh, slurmctld, slurmd, and both ends of the range that srun and collectives take theirs from."""
HTTPS = 443


class PlacedNodes(NamedTuple):
    """The nodes of a placement as a peer, with the rules of all their groups."""

    placement: NetworkPlacement
    peer: Peer
    ingress: list[SecurityRule]
    egress: list[SecurityRule]

    @property
    def group_ids_text(self) -> str:
        """Return the ids of the security groups, joined by commas."""
        return ", ".join(sorted(self.peer.groups))


def placement_nodes_with_rules(settings: Settings, facts: AccountFacts) -> Iterator[PlacedNodes]:
    """Yield the nodes of every placement whose subnets and security groups are known, with their rules."""
    network = facts.network
    subnets = facts.known_subnets
    for placement in network_placements(settings):
        if network is None or not subnets:
            continue
        groups = [network.security_group_if_known(group_id) for group_id in placement.vpc.security_group_ids]
        visible = [group for group in groups if group is not None]
        networks = tuple(IPv4Network(subnet.cidr) for subnet in subnets if subnet.id in placement.vpc.subnet_ids)
        if visible and len(visible) == len(groups) and networks:
            yield PlacedNodes(
                placement,
                Peer(frozenset(placement.vpc.security_group_ids), networks),
                [rule for group in visible for rule in group.ingress],
                [rule for group in visible for rule in group.egress],
            )


def check_efa_rules(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Where there is an EFA, its security group allows all traffic from and to itself."""
    for nodes in placement_nodes_with_rules(settings, facts):
        types, closed = _efa_types_and_blocked_directions(facts, nodes)
        if types and closed:
            yield Finding(
                "HPK-V311",
                nodes.placement.security_groups_config_path,
                f"{nodes.group_ids_text} does not allow all traffic {' and '.join(closed)} from and to "
                f"itself, which EFA on {', '.join(types)} needs: EFA is not IP traffic, so rules with "
                "address ranges do not allow it",
                _authorize_commands(sorted(nodes.peer.groups)[0], closed),
            )


def check_slurm_ports_between_nodes(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Nodes reach nodes by Slurm's TCP, within a placement and from each to each."""
    everywhere = list(placement_nodes_with_rules(settings, facts))
    for source in everywhere:
        for destination in everywhere:
            if source is destination and (
                source.placement.node_count < 2 or all(_efa_types_and_blocked_directions(facts, source))
            ):
                continue  # the same rule is missing that `check_efa_rules` has named
            closed = [
                f"{word} on TCP {', '.join(map(str, ports))}"
                for word, rules, peer in (
                    ("out", source.egress, destination.peer),
                    ("in", destination.ingress, source.peer),
                )
                if (ports := missing_ports_or_none_if_unknown(rules, peer, SLURM_PORTS))
            ]
            if closed:
                if source is destination:
                    whom = "nodes in the same groups"
                    hint = _authorize_commands(
                        sorted(source.peer.groups)[0], sorted(word.split()[0] for word in closed)
                    )
                else:
                    whom = f"nodes in {destination.group_ids_text}"
                    hint = "Allow these ports between the two groups, in and out"
                yield Finding(
                    "HPK-V312",
                    source.placement.security_groups_config_path,
                    (
                        f"nodes cannot reach each other: from {source.group_ids_text} to {whom}, blocked "
                        f"{' and '.join(closed)}"
                    ),
                    hint,
                )


def check_s3_egress(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """The groups let the nodes out to S3, by HTTPS."""
    endpoints = facts.known_endpoints
    if endpoints is None or not do_nodes_need_s3(settings):
        return
    for nodes in placement_nodes_with_rules(settings, facts):
        fitting = [rule for rule in nodes.egress if rule.covers_protocol_and_port("tcp", HTTPS)]
        inside = any(endpoint.service == "s3" and endpoint.kind == "Interface" for endpoint in endpoints)
        outward = any(
            rule.unread or any(_is_public_or_any_network(network) for network in rule.networks) for rule in fitting
        )
        if not outward and not (inside and fitting):
            yield Finding(
                "HPK-V313",
                nodes.placement.security_groups_config_path,
                (
                    f"no rule of {nodes.group_ids_text} lets the nodes connect to S3, from which they download "
                    "bundle and data"
                ),
                "Allow TCP 443 out, to 0.0.0.0/0 or to the prefix list of S3",
            )


def _efa_types_and_blocked_directions(facts: AccountFacts, nodes: PlacedNodes) -> tuple[list[str], list[str]]:
    """Return the instance types with an EFA there, and the directions in which its traffic is not allowed."""
    types = value_or_none(facts.types) or {}
    names = sorted(
        {name.removeprefix("ml.") for group in nodes.placement.groups if group.count for name in group.types}
    )
    fast = [name for name in names if name in types and types[name].efa]
    directions = (("in", nodes.ingress), ("out", nodes.egress))
    return fast, [word for word, rules in directions if not admits_all_traffic_from_any_group(rules, nodes.peer.groups)]


def _is_public_or_any_network(network: IPv4Network) -> bool:
    return network.prefixlen == 0 or not network.is_private


def _authorize_commands(group: str, directions: list[str]) -> str:
    """Return the aws commands that add the missing rules to a group."""
    verbs = {"in": "ingress", "out": "egress"}
    return "; ".join(
        f"aws ec2 authorize-security-group-{verbs[word]} --group-id {group} --ip-permissions "
        f"'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group}}}]'"
        for word in directions
    )
