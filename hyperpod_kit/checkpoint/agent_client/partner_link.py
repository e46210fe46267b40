"""Copies of captures in other nodes' memory, from the trainer's side: who holds whose, and what comes back from there.

What a rank has lost is fetched before anything is restored: it lies in this node's memory then like what the rank had
captured here, and is proved in the same way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hyperpod_kit.checkpoint.agent.partner import partner_memory, partner_wire
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import PartnerAt
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.agent_client import startup
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.agent_client.startup import StartIdentity
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.saves.saves import log
from hyperpod_kit.errors import CheckpointError

LocalKeys = Sequence[Key]
Copies = Sequence[tuple[int, Key]]


def plan_fetches(local_keys: Sequence[LocalKeys], copies: Sequence[Copies]) -> dict[int, tuple[int, Key]]:
    """What ranks must fetch so that all have the newest capture that can be had: rank -> (whose agent has it, which).

    `local_keys`: of each rank, what it has itself; `copies`: of each rank, what its node has of other ranks. Empty
    where nothing is to be fetched, or nothing is whole.
    """
    holder_of: dict[tuple[int, Key], int] = {}
    for holder, rank_copies in enumerate(copies):
        for rank, key in rank_copies:
            holder_of.setdefault((rank, key), holder)
    for key in sorted({key for keys in local_keys for key in keys} | {key for _, key in holder_of}, reverse=True):
        missing = [rank for rank, keys in enumerate(local_keys) if key not in keys]
        if all((rank, key) in holder_of for rank in missing):
            return {rank: (holder_of[rank, key], key) for rank in missing}
    return {}


class PartnerLink:
    """Each rank's partner is told its agent. A collective."""

    def __init__(self, ranks: Ranks, start: StartIdentity, agent: AgentSupervisor) -> None:
        self._ranks, self._start, self._folder = ranks, start, agent.shm_folder
        self._run = shm_slots.run_hash(start.run.run_id)
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

    def fetch_lost_snapshot(self) -> None:
        """Copy the newest snapshot that this rank has lost from another node's memory into this node's
        shared memory, where another node has it. A collective."""
        rank = self._ranks.rank
        folder = self._folder
        local_keys = [page.key for name, page in self._sealed_snapshots_of_run_and_world(folder) if name.rank == rank]
        copies: list[tuple[int, Key]] = []
        if [rank_node.node for rank_node in self._rank_nodes].index(self._rank_nodes[rank].node) == rank:
            both = [
                *self._sealed_snapshots_of_run_and_world(partner_memory.copies_directory(folder)),
                *self._sealed_snapshots_of_run_and_world(folder),
            ]
            copies = [(name.rank, page.key) for name, page in both]
        gathered = self._ranks.gather((local_keys, copies))
        source = plan_fetches([keys for keys, _ in gathered], [keys for _, keys in gathered]).get(rank)
        if source is None:
            return
        holder, key = source
        try:
            partner_wire.fetch_capture(
                self._endpoints[holder], self._start.token, self._start.run.run_id, rank, key, self._create_slot_for
            )
        except (CheckpointError, OSError) as err:
            # It is a copy less: what is older, or on storage, is still there.
            log.warning("rank %d: the capture %s was not brought from rank %d's node: %s", rank, key, holder, err)

    def _sealed_snapshots_of_run_and_world(self, folder: str) -> list[tuple[shm_slots.SlotName, Page]]:
        return [
            (name, page)
            for name, page in partner_memory.sealed_copies(folder, self._run)
            if page.origin.world == self._ranks.world and page.origin.run_id == self._start.run.run_id
        ]

    def _create_slot_for(self, page: Page) -> shm_slots.Slot:
        """Create an unused slot of this rank with room for a snapshot, in the state WRITING. Raises
        NotEnoughSharedMemory, OSError."""
        rank = self._ranks.rank
        taken = {name.slot for name in shm_slots.own_slot_names(self._folder, run=self._run, rank=rank)}
        number = min(set(range(100)) - taken)
        name = shm_slots.SlotName(shm_paths.node_uid(), self._run, rank, number)
        slot = shm_slots.create(
            self._folder, name, page.shard.size, extra_room=max(shm_slots.EXTRA_ROOM, page.shard.extra_size)
        )
        slot.write_page(replace(page, state=SlotState.WRITING))
        return slot


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
