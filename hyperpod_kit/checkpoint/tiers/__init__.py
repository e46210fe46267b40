"""Where a rank may have its shard of a checkpoint besides the root: one module for each tier, behind `base.Tier`.

A new tier is a module here, a row in `TIER_CLASSES`, and a row in `checkpoint/agent/shm/node_tiers.py`, where the
node's programs find it.
"""

from __future__ import annotations

from hyperpod_kit.checkpoint.agent.shm.node_tiers import STORAGE
from hyperpod_kit.checkpoint.tiers.base import RankSite, Tier
from hyperpod_kit.checkpoint.tiers.local_disk import LocalDiskTier
from hyperpod_kit.checkpoint.tiers.memory import MemoryTier
from hyperpod_kit.checkpoint.tiers.partner import PartnerTier

TIER_CLASSES: tuple[type[Tier], ...] = (PartnerTier, MemoryTier, LocalDiskTier)
"""All tiers, the cheapest first. Of two with one name a rank has the first that it can have."""

TIERS = (*dict.fromkeys(tier_class.name for tier_class in TIER_CLASSES), STORAGE)
"""The names of all tiers and of the root, the cheapest first. They stand in reports and in `Restored.tier`."""


def of_rank(site: RankSite) -> tuple[Tier, ...]:
    """Return the tiers that a rank has, the cheapest first."""
    by_name: dict[str, Tier] = {}
    for tier_class in TIER_CLASSES:
        tier = tier_class.of_site(site)
        if tier is not None:
            by_name.setdefault(tier_class.name, tier)
    return tuple(by_name.values())
