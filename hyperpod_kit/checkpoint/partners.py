"""Whose memory holds whose copy: pure, and the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Node = tuple[str, str]
"""A host, and where in it the shared memory is."""


class RankNode(NamedTuple):
    """Where a rank is. `switch`: what its node hangs on, by Slurm's topology ("" where there is none)."""

    node: Node
    switch: str


def network_switch_of_node(env: Mapping[str, str]) -> str:
    """Return the innermost switch (or block) of this node: SLURM_TOPOLOGY_ADDR without the node
    itself, as `spine0.leaf1.node7`; "" without a topology."""
    return env.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def assign_partners(rank_nodes: Sequence[RankNode]) -> list[int | None]:
    """Return for each rank the rank whose agent holds its copies: on the node that is half a ring of
    all nodes further on.

    The nodes of a switch are side by side in the ring, so it is one of another switch wherever no
    switch has more than half of all nodes, and each node holds the copies of one other. With an
    even number of nodes they are pairs. None for the ranks of a single node.
    """
    nodes: dict[Node, list[int]] = {}
    switches: dict[str, list[Node]] = {}
    for rank, rank_node in enumerate(rank_nodes):
        if rank_node.node not in nodes:
            switches.setdefault(rank_node.switch, []).append(rank_node.node)
        nodes.setdefault(rank_node.node, []).append(rank)
    ring = [node for _, members in sorted(switches.items()) for node in members]
    partner_of: list[int | None] = [None] * len(rank_nodes)
    for at, node in enumerate(ring):
        other = nodes[ring[(at + len(ring) // 2) % len(ring)]]
        if len(ring) == 1:
            continue
        for number, rank in enumerate(nodes[node]):
            partner_of[rank] = other[number % len(other)]
    return partner_of
