"""Security groups of the nodes: they reach each other, their EFAs do too, and S3 is within reach."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Iterator, Optional

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.facts import Facts, known
from hyperpod_kit.preflight.look.network import GROUPS, plain_types
from hyperpod_kit.preflight.reach import Peer, Rule, admits_everything_from, missing_ports

SLURM_PORTS = (22, 6817, 6818, 32768, 60999)
"""ssh, slurmctld, slurmd, and both ends of the range that srun and collectives take theirs from."""
HTTPS = 443


def nodes(settings: Settings, facts: Facts) -> Optional[tuple[Peer, list[Rule], list[Rule]]]:
    """The nodes as a peer, with the rules of all their groups, in and out; None when not all of it is known."""
    vpc, network = settings.cluster.vpc, facts.network
    subnets = known(network.subnets) if network else None
    if vpc is None or network is None or not subnets:
        return None
    groups = [network.group(group_id) for group_id in vpc.security_group_ids]
    there = [group for group in groups if group is not None]
    if not there or len(there) < len(groups):
        return None
    peer = Peer(frozenset(vpc.security_group_ids), tuple(IPv4Network(subnet.cidr) for subnet in subnets))
    return peer, [rule for group in there for rule in group.ingress], [rule for group in there for rule in group.egress]


def each_other(settings: Settings, facts: Facts) -> Iterator[Finding]:
    """Nodes reach nodes: all traffic from and to their own group where there is an EFA, Slurm's TCP everywhere."""
    found = nodes(settings, facts)
    if found is None or sum(group.count for group in settings.cluster.groups) < 2:
        return
    peer, ingress, egress = found
    types = known(facts.types) or {}
    fabric = [name for name in plain_types(settings) if name in types and types[name].efa]
    names = ", ".join(sorted(peer.groups))
    if fabric:
        closed = [
            word for word, rules in (("in", ingress), ("out", egress)) if not admits_everything_from(rules, peer.groups)
        ]
        if closed:
            yield Finding(
                "HPK-V311",
                GROUPS,
                f"{names} does not allow all traffic {' and '.join(closed)} from and to itself, which the EFA of "
                f"{', '.join(fabric)} needs: it is no IP traffic, so rules with address ranges do not allow it",
                f"{_authorize(sorted(peer.groups)[0], closed)}",
            )
            return
    closed = [
        f"{word} on TCP {', '.join(map(str, ports))}"
        for word, rules in (("in", ingress), ("out", egress))
        if (ports := missing_ports(rules, peer, SLURM_PORTS))
    ]
    if closed:
        yield Finding(
            "HPK-V312",
            GROUPS,
            f"nodes do not reach each other: {names} does not let its own members {' and '.join(closed)}",
            f"{_authorize(sorted(peer.groups)[0], [word.split()[0] for word in closed])}",
        )


def s3(settings: Settings, facts: Facts) -> Iterator[Finding]:
    """The groups let the nodes out to S3, by HTTPS."""
    found = nodes(settings, facts)
    endpoints = known(facts.network.endpoints) if facts.network else None
    if found is None or endpoints is None:
        return
    _, _, egress = found
    fitting = [rule for rule in egress if rule.covers("tcp", HTTPS)]
    inside = any(endpoint.service == "s3" and endpoint.kind == "Interface" for endpoint in endpoints)
    outward = any(rule.unread or any(_is_outside(network) for network in rule.networks) for rule in fitting)
    if not outward and not (inside and fitting):
        yield Finding(
            "HPK-V313",
            GROUPS,
            "no rule lets the nodes out to S3, from which they fetch the lifecycle script",
            "Allow TCP 443 out, to 0.0.0.0/0 or to the prefix list of S3",
        )


def _is_outside(network: IPv4Network) -> bool:
    return network.prefixlen == 0 or not network.is_private


def _authorize(group: str, directions: list[str]) -> str:
    """The commands that add the rules."""
    verbs = {"in": "ingress", "out": "egress"}
    return "; ".join(
        f"aws ec2 authorize-security-group-{verbs[word]} --group-id {group} --ip-permissions "
        f"'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group}}}]'"
        for word in directions
    )
