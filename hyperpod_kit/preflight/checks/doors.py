"""From a node to a file system: every pair of a node's rules and a file system's rules that a connection passes."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from hyperpod_kit.config.settings import Settings
from hyperpod_kit.preflight.checks.groups import nodes
from hyperpod_kit.preflight.facts import Door, Facts, Unasked
from hyperpod_kit.preflight.reach import Peer, Rule, missing_ports


class Shut(NamedTuple):
    """Ports that do not get through. `where`: whose rules they are, `the nodes' sg-1 out to fsmt-1`."""

    where: str
    groups: tuple[str, ...]
    ports: tuple[int, ...]


def to_doors(settings: Settings, facts: Facts, doors: Iterable[Door], ports: Sequence[int]) -> Iterator[Shut]:
    """What keeps nodes from connecting to the doors."""
    return _shut(settings, facts, doors, ports, from_nodes=True)


def from_doors(settings: Settings, facts: Facts, doors: Iterable[Door], ports: Sequence[int]) -> Iterator[Shut]:
    """What keeps the doors from connecting to nodes."""
    return _shut(settings, facts, doors, ports, from_nodes=False)


def _shut(
    settings: Settings, facts: Facts, doors: Iterable[Door], ports: Sequence[int], *, from_nodes: bool
) -> Iterator[Shut]:
    found = nodes(settings, facts)
    if found is None or facts.network is None:
        return
    peer, into_nodes, out_of_nodes = found
    for door in doors:
        rules = _rules(facts, door)
        if rules is None or isinstance(door.groups, Unasked):
            continue
        into_door, out_of_door = rules
        there = Peer(frozenset(door.groups), (IPv4Network(door.address),) if door.address else ())
        nodes_side = missing_ports(out_of_nodes if from_nodes else into_nodes, there, ports)
        door_side = missing_ports(into_door if from_nodes else out_of_door, peer, ports)
        nodes_groups = tuple(sorted(peer.groups))
        if nodes_side:
            towards = f"out to {door.id}" if from_nodes else f"in from {door.id}"
            yield Shut(f"the nodes' {', '.join(nodes_groups)} {towards}", nodes_groups, tuple(nodes_side))
        if door_side:
            towards = "in from the nodes" if from_nodes else "out to the nodes"
            named = ", ".join(door.groups) or "no security group"
            yield Shut(f"{named} of {door.id} {towards}", door.groups, tuple(door_side))


def _rules(facts: Facts, door: Door) -> Optional[tuple[list[Rule], list[Rule]]]:
    """Rules of a door's groups, in and out; None when not all are known."""
    assert facts.network is not None
    if isinstance(door.groups, Unasked):
        return None
    groups = [facts.network.group(group_id) for group_id in door.groups]
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
