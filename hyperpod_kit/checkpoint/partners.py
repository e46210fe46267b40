"""Whose memory holds whose copy: pure, and the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Node = tuple[str, str]
"""A host, and where in it the shared memory is."""


class RankPlace(NamedTuple):
    """Where a rank is. `switch`: what its node hangs on, by Slurm's topology ("" where there is none)."""

    node: Node
    switch: str


def switch_of(env: Mapping[str, str]) -> str:
    """The innermost switch (or block) of this node: SLURM_TOPOLOGY_ADDR without the node itself, as
    `spine0.leaf1.node7`."""
    return env.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def partners(places: Sequence[RankPlace]) -> list[int | None]:
    """By rank, the rank whose agent holds its copies: on the node that is half a ring of all nodes further on.

    The nodes of a switch are side by side in the ring, so it is one of another switch wherever no switch has more than
    half of all nodes, and each node holds the copies of one other. With an even number of nodes they are pairs. None
    for the ranks of a single node.
    """
    nodes: dict[Node, list[int]] = {}
    switches: dict[str, list[Node]] = {}
    for rank, place in enumerate(places):
        if place.node not in nodes:
            switches.setdefault(place.switch, []).append(place.node)
        nodes.setdefault(place.node, []).append(rank)
    ring = [node for _, members in sorted(switches.items()) for node in members]
    found: list[int | None] = [None] * len(places)
    for at, node in enumerate(ring):
        other = nodes[ring[(at + len(ring) // 2) % len(ring)]]
        for number, rank in enumerate(nodes[node] if len(ring) > 1 else ()):
            found[rank] = other[number % len(other)]
    return found
