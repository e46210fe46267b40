"""Copies of captures in other nodes' memory, from the trainer's side: who holds whose, and the way to them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hyperpod_kit.checkpoint.agent.partner import partner_wire
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import PartnerAt
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page
from hyperpod_kit.checkpoint.agent_client import startup
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.agent_client.startup import StartIdentity
from hyperpod_kit.checkpoint.ranks.collectives import Ranks


class PartnerLink:
    """Each rank's partner is told its agent. A collective."""

    def __init__(self, ranks: Ranks, start: StartIdentity, agent: AgentSupervisor) -> None:
        self.ranks, self.slots_directory = ranks, agent.shm_folder
        self._start = start
        local_node = RankNode((socket.gethostname(), agent.shm_folder), network_switch_of_node(os.environ))
        endpoints = [(host, agent.partner_port) for host in startup.listening_addresses(start.hosts)]
        gathered = ranks.gather((list(local_node.node), local_node.switch, endpoints))
        self._rank_nodes = [RankNode((str(host), str(folder)), str(switch)) for (host, folder), switch, _ in gathered]
        self._endpoints: list[list[tuple[str, int]]] = [
            [(str(host), int(port)) for host, port in rank_endpoints] for *_, rank_endpoints in gathered
        ]
        partner = assign_partners(self._rank_nodes)[ranks.rank]
        if partner is not None:
            agent.send(PartnerAt(self._endpoints[partner]))

    @property
    def is_first_rank_of_node(self) -> bool:
        """Return whether no lower rank is on this rank's node."""
        nodes = [rank_node.node for rank_node in self._rank_nodes]
        return nodes.index(nodes[self.ranks.rank]) == self.ranks.rank

    def fetch(self, holder: int, key: Key, make_slot: Callable[[Page], shm_slots.Slot]) -> None:
        """Copy a snapshot of this rank from the node of rank `holder`, see `partner_wire.fetch_capture`. Raises
        OSError, CheckpointError."""
        start = self._start
        partner_wire.fetch_capture(
            self._endpoints[holder], start.token, start.run.run_id, self.ranks.rank, key, make_slot
        )


# Whose memory holds whose copy: pure, and the same on all ranks.

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
