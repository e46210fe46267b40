"""Memory of which other nodes hold copies: what a rank has lost is copied back, and is memory from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.saves.saves import log
from hyperpod_kit.checkpoint.tiers.base import RankSite
from hyperpod_kit.checkpoint.tiers.memory import MemoryTier
from hyperpod_kit.errors import CheckpointError

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent_client.partner_link import PartnerLink

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


class PartnerTier(MemoryTier):
    """The slots of one rank, as those of the tier memory, one of which may be filled from another node's memory."""

    node_tier = node_tiers.PARTNER

    def __init__(self, slots: Sequence[shm_slots.Slot], run_id: str, rank: int, partners: PartnerLink) -> None:
        super().__init__(slots, run_id, rank)
        self._partners = partners
        self._folder = partners.slots_directory
        self._run = shm_slots.run_hash(run_id)

    @classmethod
    def of_site(cls, site: RankSite) -> PartnerTier | None:
        if site.partners is None:
            return None
        return cls(site.slots, site.run_id, site.rank, site.partners)

    def fetch_lost_snapshot(self) -> None:
        """Copy the newest snapshot that this rank has lost from another node's memory into a slot of its own, where
        another node has it. A collective."""
        gathered = self._partners.ranks.gather((self._local_keys(), self._copies_on_this_node()))
        source = plan_fetches([keys for keys, _ in gathered], [copies for _, copies in gathered]).get(self._rank)
        if source is None:
            return
        holder, key = source
        try:
            self._partners.fetch(holder, key, self._create_slot_for)
        except (CheckpointError, OSError) as err:
            # It is a copy less: what is older, or on storage, is still there.
            log.warning("rank %d: the capture %s was not brought from rank %d's node: %s", self._rank, key, holder, err)

    def _local_keys(self) -> list[Key]:
        return [page.key for name, page in self._sealed_of_run_and_world(self._folder) if name.rank == self._rank]

    def _copies_on_this_node(self) -> list[tuple[int, Key]]:
        """Return (rank, key) of each snapshot here that this rank may give away: one rank of a node does so for all."""
        if not self._partners.is_first_rank_of_node:
            return []
        folders = (partner_memory.copies_directory(self._folder), self._folder)
        return [(name.rank, page.key) for folder in folders for name, page in self._sealed_of_run_and_world(folder)]

    def _sealed_of_run_and_world(self, folder: str) -> list[tuple[shm_slots.SlotName, Page]]:
        return [
            (name, page)
            for name, page in partner_memory.sealed_copies(folder, self._run)
            if page.origin.world == self._partners.ranks.world and page.origin.run_id == self._run_id
        ]

    def _create_slot_for(self, page: Page) -> shm_slots.Slot:
        """Create an unused slot of this rank with room for a snapshot, in the state WRITING. Raises
        NotEnoughSharedMemory, OSError."""
        taken = {name.slot for name in shm_slots.own_slot_names(self._folder, run=self._run, rank=self._rank)}
        number = min(set(range(100)) - taken)
        name = shm_slots.SlotName(shm_paths.node_uid(), self._run, self._rank, number)
        slot = shm_slots.create(
            self._folder, name, page.shard.size, extra_room=max(shm_slots.EXTRA_ROOM, page.shard.extra_size)
        )
        slot.write_page(page._replace(state=SlotState.WRITING))
        return slot
