"""Which numbers the saves of this start have, and which save each of them follows."""

from __future__ import annotations

from collections.abc import Sequence

from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent_client import startup
from hyperpod_kit.checkpoint.ranks.collectives import Ranks


class SaveIds:
    """The epoch of this start, and the seq of each save in it.

    `unclaimed` says why the epoch is not ours yet, "" when it is. `parent` is the save, or the restored checkpoint,
    before the next save.
    """

    def __init__(self, ranks: Ranks, start: startup.StartIdentity, earlier: Sequence[Key]) -> None:
        """A collective. `earlier`: what all ranks have in memory and on their nodes' disks. Raises CheckpointError."""
        self._ranks, self._start, self._earlier = ranks, start, earlier
        self._seq = 0
        self._line: int | None = None
        self.parent: dict[str, int] | None = None
        self.claim_epoch()

    def claim_epoch(self) -> None:
        """Claim this start's epoch in the root; where the root cannot be written, it is still to be
        claimed by the next save. A collective."""
        self.epoch, seq, self.unclaimed = startup.claim_start_epoch(self._ranks, self._start, self._earlier)
        self._seq = max(self._seq, seq)

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    @property
    def lineage_start_epoch(self) -> int:
        """Return the epoch of the start from scratch that the saves of this start descend from; 0 when
        that is not known."""
        if self._line is None:
            return self.epoch
        return self._line

    def set_lineage_start_epoch(self, start_epoch: int) -> None:
        """Set the line of the checkpoint from which this start continues."""
        self._line = start_epoch

    def set_parent(self, seq: int, step: int) -> None:
        """Set the save that the next save follows."""
        self.parent = {"seq": seq, "step": step}
