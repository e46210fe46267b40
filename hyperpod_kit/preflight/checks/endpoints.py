"""From a node to a file system: every pair of a node's rules and a file system's rules that a connection passes."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Iterator, NamedTuple, Optional, Sequence

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.preflight.checks.groups import PlacedNodes, placement_nodes_with_rules
from hyperpod_kit.preflight.facts import AccountFacts, NotQueried, StorageEndpoint, value_or_none
from hyperpod_kit.preflight.reachability import Peer, SecurityRule, missing_ports_or_none_if_unknown


class BlockedPorts(NamedTuple):
    """Ports that do not get through. `where`: whose rules they are, `sg-1 of the nodes, out to fsmt-1`."""

    where: str
    groups: tuple[str, ...]
    ports: tuple[int, ...]


def find_ports_blocked_to_endpoints(
    settings: Settings,
    facts: AccountFacts,
    mounts: Sequence[Mount],
    endpoints: Sequence[StorageEndpoint],
    ports: Sequence[int],
) -> Iterator[BlockedPorts]:
    """Yield what keeps the nodes that carry the mounts from connecting to the endpoints."""
    for nodes, endpoint, into_endpoint, _ in _node_endpoint_pairs_with_rules(settings, facts, mounts, endpoints):
        yield from _find_blocked_on_either_side(
            nodes, endpoint, nodes.egress, into_endpoint, ports, ("out to", "in from")
        )


def find_ports_blocked_from_endpoints(
    settings: Settings,
    facts: AccountFacts,
    mounts: Sequence[Mount],
    endpoints: Sequence[StorageEndpoint],
    ports: Sequence[int],
) -> Iterator[BlockedPorts]:
    """Yield what keeps the endpoints from connecting to the nodes that carry the mounts."""
    for nodes, endpoint, _, out_of_endpoint in _node_endpoint_pairs_with_rules(settings, facts, mounts, endpoints):
        yield from _find_blocked_on_either_side(
            nodes, endpoint, nodes.ingress, out_of_endpoint, ports, ("in from", "out to")
        )


def _find_blocked_on_either_side(
    nodes: PlacedNodes,
    endpoint: StorageEndpoint,
    node_rules: Sequence[SecurityRule],
    endpoint_rules: Sequence[SecurityRule],
    ports: Sequence[int],
    direction_words: tuple[str, str],
) -> Iterator[BlockedPorts]:
    """Yield the ports that the rules of the nodes or those of the endpoint do not let through.

    `ways`: from each side, in words.
    """
    groups = value_or_none(endpoint.groups) or ()
    networks: tuple[IPv4Network, ...]
    if endpoint.address:
        networks = (IPv4Network(endpoint.address),)
    else:
        networks = ()
    endpoint_peer = Peer(frozenset(groups), networks)
    closed = missing_ports_or_none_if_unknown(node_rules, endpoint_peer, ports)
    if closed:
        where = f"{nodes.group_ids_text} of the nodes, {direction_words[0]} {endpoint.id}"
        yield BlockedPorts(where, tuple(sorted(nodes.peer.groups)), tuple(closed))
    closed = missing_ports_or_none_if_unknown(endpoint_rules, nodes.peer, ports)
    if closed:
        names = ", ".join(groups) or "no security group"
        yield BlockedPorts(
            f"{names} of {endpoint.id}, {direction_words[1]} the nodes of {nodes.group_ids_text}", groups, tuple(closed)
        )


def _node_endpoint_pairs_with_rules(
    settings: Settings, facts: AccountFacts, mounts: Sequence[Mount], endpoints: Sequence[StorageEndpoint]
) -> Iterator[tuple[PlacedNodes, StorageEndpoint, list[SecurityRule], list[SecurityRule]]]:
    """Yield each placement that carries the mounts with each endpoint, and the endpoint's rules, in and out."""
    for nodes in placement_nodes_with_rules(settings, facts):
        if not nodes.placement.has_node_with_any_mount(mounts):
            continue
        for endpoint in endpoints:
            rules = _ingress_and_egress_rules_if_known(facts, endpoint)
            if rules is not None:
                yield nodes, endpoint, *rules


def _ingress_and_egress_rules_if_known(
    facts: AccountFacts, endpoint: StorageEndpoint
) -> Optional[tuple[list[SecurityRule], list[SecurityRule]]]:
    """Return the ingress and egress rules of an endpoint's groups, None when not all are known."""
    assert facts.network is not None
    if isinstance(endpoint.groups, NotQueried):
        return None
    groups = [facts.network.security_group_if_known(group_id) for group_id in endpoint.groups]
    visible = [group for group in groups if group is not None]
    if len(visible) < len(groups):
        return None
    return [rule for group in visible for rule in group.ingress], [rule for group in visible for rule in group.egress]


def format_ports(ports: Sequence[int]) -> str:
    """Format ports like `988 and 1018-1023`."""
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][1] + 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    ranges = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return " and ".join(ranges)
