"""A candidate that cannot be restored, and what is left behind for those who come later."""

from __future__ import annotations

import contextlib

from hyperpod_kit.checkpoint.ranks.reason import Reason
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import tombstone
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError


class CandidateRejected(Exception):
    """This candidate cannot be restored, for a reason that is the same on all ranks.

    `rank` is the one that has it, None when that is not known.
    """

    def __init__(self, reason: Reason, rank: int | None = None) -> None:
        super().__init__(reason.text)
        self.reason = reason
        self.rank = rank


def write_tombstone_if_damaged_again(store: Store, checkpoint_id: str, rank: int, reason: str) -> None:
    """Verify a rank's shard and the small files once more, and write a tombstone when the damage is
    seen again: one bad read must not condemn a checkpoint."""
    try:
        body = verify.read_manifest(store, checkpoint_id)
        for small in (body.extra, body.index):
            if small is not None:
                verify.read_verified_small_file(store, checkpoint_id, small)
        if rank < body.world:
            verify.verify_shard_file(store, checkpoint_id, body.shards[rank], chunk=body.chunk)
    except (CheckpointError, OSError) as err:
        if tombstone.proves_damage(err):
            with contextlib.suppress(OSError, CheckpointError):
                tombstone.write(store, checkpoint_id, reason)
