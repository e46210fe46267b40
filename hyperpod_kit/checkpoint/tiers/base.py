"""What a tier is: a place besides the root where ranks may have their shards, proved like what the root has."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.shm.node_tiers import NodeTier
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.transfer.load import ProvedShard

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent_client.partner_link import PartnerLink

Tree = dict[str, Any]
"""The non-tensor state of a checkpoint."""


class RankSite(NamedTuple):
    """What a rank has to restore from besides the root.

    Attributes:
        run_id: Its run.
        rank: Its number.
        slots: Its slots in shared memory.
        local: The directory on the node's own disk that the agents write to, None where they write to none.
        partners: The way to the memory of other nodes, None where no copies are held there.
    """

    run_id: str
    rank: int
    slots: Sequence[shm_slots.Slot] = ()
    local: str | None = None
    partners: PartnerLink | None = None


@wire_values.register_type
class HeldShard(NamedTuple):
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
        name: What stands for it in reports and in `Restored.tier`.
        node_tier: What the node's programs know it by.
        reads_early: Whether its shard may be read before the ranks have agreed on the checkpoint: reading costs other
            ranks and storage nothing.
    """

    name: ClassVar[str]
    node_tier: ClassVar[NodeTier]
    reads_early: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def of_site(cls, site: RankSite) -> Tier | None:
        """Return the tier as a rank has it; None where it has none."""

    def fetch_lost_snapshot(self) -> None:  # noqa: B027 - most tiers have nothing on other nodes
        """Copy to this node what this rank has lost and this tier has elsewhere. All ranks call it together, once,
        before the first listing; what cannot be had is logged."""

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
