"""What a tier is: a place besides the root where ranks may have their shards, proved like what the root has."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.transfer.load import ProvedShard

Tree = dict[str, Any]
"""The non-tensor state of a checkpoint."""

MEMORY, LOCAL, STORAGE = "memory", "local", "storage"
TIERS = (MEMORY, LOCAL, STORAGE)
"""The names of all tiers and of the root, the cheapest first. They stand in reports and in `Restored.tier`."""


@wire_values.register_type
@dataclass(frozen=True)
class HeldShard:
    """One rank's shard of a capture outside the root: what proves it, and what it is a part of."""

    tier: str
    checkpoint_id: str
    key: Key
    world: int
    plan: str
    root: str  # digest of the shard
    size: int


class Tier(abc.ABC):
    """One tier, as one rank sees it.

    Attributes:
        name: One of `TIERS`, but not the root's.
        reads_early: Whether its shard may be read before the ranks have agreed on the checkpoint: reading costs other
            ranks and storage nothing.
    """

    name: str
    reads_early = False

    @abc.abstractmethod
    def list_copies(self) -> list[HeldShard]:
        """Return the complete shards of this rank's run that are there. What cannot be read counts as absent."""

    @abc.abstractmethod
    def read_proved_tree(self, shard_copy: HeldShard) -> Tree:
        """Read and prove the non-tensor state beside a shard.

        Raises:
            DigestMismatch: It is damaged.
            CheckpointError: It is gone.
            OSError: It cannot be read.
        """

    @abc.abstractmethod
    def open_shard(self, shard_copy: HeldShard) -> AbstractContextManager[ProvedShard]:
        """Open a shard, each chunk of which is proved as it is read; the shard's `confirm` raises CheckpointError when
        it has been freed meanwhile. Raises as `read_proved_tree`."""
