"""Copies of captures in other nodes' memory, from the trainer's side: who holds whose, and what comes back from there.

What a rank has lost is fetched before anything is restored: it lies in this node's memory then like what the rank had
captured here, and is proved in the same way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace

from hyperpod_kit.checkpoint import partners, startup
from hyperpod_kit.checkpoint.agent import partner_memory, partner_wire, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import PartnerAt
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.keeper import AgentKeeper
from hyperpod_kit.checkpoint.saves import log
from hyperpod_kit.checkpoint.startup import StartIdentity
from hyperpod_kit.errors import CheckpointError

Own = Sequence[Key]
Copies = Sequence[tuple[int, Key]]


def whence(own: Sequence[Own], copies: Sequence[Copies]) -> dict[int, tuple[int, Key]]:
    """What ranks must fetch so that all have the newest capture that can be had: rank -> (whose agent has it, which).

    `own`: of each rank, what it has itself; `copies`: of each rank, what its node has of other ranks. Empty where
    nothing is to be fetched, or nothing is whole.
    """
    held: dict[tuple[int, Key], int] = {}
    for holder, found in enumerate(copies):
        for rank, key in found:
            held.setdefault((rank, key), holder)
    for key in sorted({key for keys in own for key in keys} | {key for _, key in held}, reverse=True):
        missing = [rank for rank, keys in enumerate(own) if key not in keys]
        if all((rank, key) in held for rank in missing):
            return {rank: (held[rank, key], key) for rank in missing}
    return {}


class PartnerLink:
    """Each rank's partner is told its agent. A collective."""

    def __init__(self, ranks: Ranks, start: StartIdentity, agent: AgentKeeper) -> None:
        self._ranks, self._start, self._folder = ranks, start, agent.folder
        self._run = shm_slots.run_hash(start.run.run_id)
        here = partners.RankPlace((socket.gethostname(), agent.folder), partners.switch_of(os.environ))
        at = [(host, agent.partner_port) for host in startup.addresses(start.hosts)]
        seen = ranks.gather((list(here.node), here.switch, at))
        self._places = [partners.RankPlace((str(host), str(folder)), str(switch)) for (host, folder), switch, _ in seen]
        self._at: list[list[tuple[str, int]]] = [[(str(host), int(port)) for host, port in found] for *_, found in seen]
        partner = partners.partners(self._places)[ranks.rank]
        if partner is not None:
            agent.send(PartnerAt(self._at[partner]))

    def fetch(self) -> None:
        """Bring what this rank has lost into this node's memory, where another node has it. A collective."""
        rank = self._ranks.rank
        folder = self._folder
        own = [page.key for name, page in self._sealed(folder) if name.rank == rank]
        copies: list[tuple[int, Key]] = []
        if [place.node for place in self._places].index(self._places[rank].node) == rank:
            both = [*self._sealed(partner_memory.copies_directory(folder)), *self._sealed(folder)]
            copies = [(name.rank, page.key) for name, page in both]
        seen = self._ranks.gather((own, copies))
        mine = whence([found for found, _ in seen], [found for _, found in seen]).get(rank)
        if mine is None:
            return
        holder, key = mine
        try:
            partner_wire.get(self._at[holder], self._start.token, self._start.run.run_id, rank, key, self._new_slot)
        except (CheckpointError, OSError) as err:
            # It is a copy less: what is older, or on storage, is still there.
            log.warning("rank %d: the capture %s was not brought from rank %d's node: %s", rank, key, holder, err)

    def _sealed(self, folder: str) -> list[tuple[shm_slots.SlotName, Page]]:
        return [
            (name, page)
            for name, page in partner_memory.sealed_copies(folder, self._run)
            if page.origin.world == self._ranks.world and page.origin.run_id == self._start.run.run_id
        ]

    def _new_slot(self, page: Page) -> shm_slots.Slot:
        """A slot of this rank that was not there, with room for that capture. Raises NotEnoughSharedMemory, OSError."""
        rank = self._ranks.rank
        taken = {name.slot for name in shm_slots.names(self._folder, run=self._run, rank=rank)}
        number = min(set(range(100)) - taken)
        name = shm_slots.SlotName(shm_paths.node_uid(), self._run, rank, number)
        slot = shm_slots.create(
            self._folder, name, page.shard.size, extra_room=max(shm_slots.EXTRA_ROOM, page.shard.extra_size)
        )
        slot.write_page(replace(page, state=SlotState.WRITING))
        return slot
