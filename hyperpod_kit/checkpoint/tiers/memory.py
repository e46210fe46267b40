"""Shared memory: the sealed snapshots in this rank's slots."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.tiers.base import HeldShard, RankSite, Tier, Tree
from hyperpod_kit.checkpoint.transfer.load import ProvedShard
from hyperpod_kit.errors import CheckpointError, DigestMismatch


class MemoryTier(Tier):
    """The slots of one rank, of which those of its run count."""

    name = "memory"
    node_tier = node_tiers.MEMORY
    reads_early = True

    def __init__(self, slots: Sequence[shm_slots.Slot], run_id: str, rank: int) -> None:
        self._slots = slots
        self._run_id = run_id
        self._rank = rank

    @classmethod
    def of_site(cls, site: RankSite) -> MemoryTier | None:
        return cls(site.slots, site.run_id, site.rank)

    def list_copies(self) -> list[HeldShard]:
        pages = [page for _, page in _iter_sealed(self._slots)]
        return [_held_shard_of_page(page) for page in pages if self._is_of_this_rank(page)]

    def read_proved_tree(self, shard_copy: HeldShard) -> Tree:
        slot, page = self._find_sealed_slot(shard_copy.key)
        extra = slot.read_extra(page.shard.extra_size)
        actual_root = digest.small_object_digest(extra)
        if actual_root != page.shard.extra_root:
            raise DigestMismatch(slot.name.file("ctl"), page.shard.extra_root, actual_root)
        return dict(json.loads(extra))

    @contextlib.contextmanager
    def open_shard(self, shard_copy: HeldShard) -> Iterator[ProvedShard]:
        slot, page = self._find_sealed_slot(shard_copy.key)

        def require_still_sealed() -> None:
            current = slot.page
            if current is None or current.state != SlotState.SEALED or current.key != shard_copy.key:
                raise CheckpointError("the capture was freed while it was read")

        image = stream.Mapped(slot.image[: page.shard.size])
        name = slot.name.file("img")
        shard = stream.Shard(image, shard_copy.size, shard_copy.root, name=name, chunk=page.shard.chunk)
        yield ProvedShard(shard, require_still_sealed)

    def _is_of_this_rank(self, page: Page) -> bool:
        return page.origin.run_id == self._run_id and page.origin.rank == self._rank

    def _find_sealed_slot(self, key: Key) -> tuple[shm_slots.Slot, Page]:
        for slot, page in _iter_sealed(self._slots):
            if page.key == key:
                return slot, page
        raise CheckpointError("the capture is gone")


def _iter_sealed(slots: Sequence[shm_slots.Slot]) -> Iterator[tuple[shm_slots.Slot, Page]]:
    """Yield each slot that has a sealed snapshot, with its control page as it was read once."""
    for slot in slots:
        page = slot.page
        if page is not None and page.state == SlotState.SEALED:
            yield slot, page


def _held_shard_of_page(page: Page) -> HeldShard:
    """Return the shard of a snapshot in memory, under the checkpoint id that the agents commit it with."""
    shard = page.shard
    checkpoint_id = page.checkpoint_id(page.origin.incarnation)
    return HeldShard(MemoryTier.name, checkpoint_id, page.key, page.origin.world, shard.plan, shard.root, shard.size)
