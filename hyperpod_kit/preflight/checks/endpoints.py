"""From a node to a file system: every pair of a node's rules and a file system's rules that a connection passes."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Iterator, NamedTuple, Optional, Sequence

from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts import Mount
from hyperpod_kit.preflight.checks.groups import Members, members
from hyperpod_kit.preflight.facts import AccountFacts, NotQueried, StorageEndpoint, known
from hyperpod_kit.preflight.reach import Peer, SecurityRule, missing_ports


class Shut(NamedTuple):
    """Ports that do not get through. `where`: whose rules they are, `sg-1 of the nodes, out to fsmt-1`."""

    where: str
    groups: tuple[str, ...]
    ports: tuple[int, ...]


def to_endpoints(
    settings: Settings,
    facts: AccountFacts,
    mounts: Sequence[Mount],
    endpoints: Sequence[StorageEndpoint],
    ports: Sequence[int],
) -> Iterator[Shut]:
    """What keeps the nodes that carry the mounts from connecting to the endpoints."""
    for found, endpoint, into_endpoint, _ in _pairs(settings, facts, mounts, endpoints):
        there = Peer(
            frozenset(known(endpoint.groups) or ()), (IPv4Network(endpoint.address),) if endpoint.address else ()
        )
        closed = missing_ports(found.egress, there, ports)
        if closed:
            yield Shut(
                f"{found.names} of the nodes, out to {endpoint.id}", tuple(sorted(found.peer.groups)), tuple(closed)
            )
        closed = missing_ports(into_endpoint, found.peer, ports)
        if closed:
            yield _of_endpoint(endpoint, f"in from the nodes of {found.names}", closed)


def from_endpoints(
    settings: Settings,
    facts: AccountFacts,
    mounts: Sequence[Mount],
    endpoints: Sequence[StorageEndpoint],
    ports: Sequence[int],
) -> Iterator[Shut]:
    """What keeps the endpoints from connecting to the nodes that carry the mounts."""
    for found, endpoint, _, out_of_endpoint in _pairs(settings, facts, mounts, endpoints):
        there = Peer(
            frozenset(known(endpoint.groups) or ()), (IPv4Network(endpoint.address),) if endpoint.address else ()
        )
        closed = missing_ports(found.ingress, there, ports)
        if closed:
            yield Shut(
                f"{found.names} of the nodes, in from {endpoint.id}", tuple(sorted(found.peer.groups)), tuple(closed)
            )
        closed = missing_ports(out_of_endpoint, found.peer, ports)
        if closed:
            yield _of_endpoint(endpoint, f"out to the nodes of {found.names}", closed)


def _pairs(
    settings: Settings, facts: AccountFacts, mounts: Sequence[Mount], endpoints: Sequence[StorageEndpoint]
) -> Iterator[tuple[Members, StorageEndpoint, list[SecurityRule], list[SecurityRule]]]:
    """Every placement with every endpoint, and the endpoint's rules, in and out."""
    for found in members(settings, facts):
        for endpoint in endpoints if found.placement.carries(mounts) else ():
            rules = _rules(facts, endpoint)
            if rules is not None:
                yield found, endpoint, *rules


def _of_endpoint(endpoint: StorageEndpoint, direction: str, closed: Sequence[int]) -> Shut:
    groups = known(endpoint.groups) or ()
    return Shut(f"{', '.join(groups) or 'no security group'} of {endpoint.id}, {direction}", groups, tuple(closed))


def _rules(facts: AccountFacts, endpoint: StorageEndpoint) -> Optional[tuple[list[SecurityRule], list[SecurityRule]]]:
    """Rules of an endpoint's groups, in and out; None when not all are known."""
    assert facts.network is not None
    if isinstance(endpoint.groups, NotQueried):
        return None
    groups = [facts.network.group(group_id) for group_id in endpoint.groups]
    there = [group for group in groups if group is not None]
    if len(there) < len(groups):
        return None
    return [rule for group in there for rule in group.ingress], [rule for group in there for rule in group.egress]


def ports_text(ports: Sequence[int]) -> str:
    """`988 and 1018-1023`."""
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][1] + 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    words = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return " and ".join(words)
