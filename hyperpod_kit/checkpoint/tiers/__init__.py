"""Where a rank may have its shard of a checkpoint besides the root: one module for each tier, behind `base.Tier`.

`of_rank` lists the tiers of a rank, the cheapest first; a new tier is a module here and a line there.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.tiers.base import Tier
from hyperpod_kit.checkpoint.tiers.local_disk import LocalDiskTier
from hyperpod_kit.checkpoint.tiers.memory import MemoryTier


def of_rank(
    run_id: str, rank: int, *, slots: Sequence[shm_slots.Slot] = (), local: str | None = None
) -> tuple[Tier, ...]:
    """Return the tiers that a rank has, the cheapest first.

    `slots`: its slots in shared memory; `local`: the directory on the node's own disk that the agents write to, None
    where they write to none.
    """
    tiers: list[Tier] = [MemoryTier(slots, run_id, rank)]
    if local is not None:
        tiers.append(LocalDiskTier(local, run_id, rank))
    return tuple(tiers)
