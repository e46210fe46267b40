"""Whether a root can ever hold two checkpoints at once, where the policy keeps one: asked before a byte is trained.

A new checkpoint is whole before an older one goes. Where there is room for one only, a save could be made only by
deleting the only good one.
"""

from __future__ import annotations

import os

from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts, Policy, is_serializable
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import CheckpointError


def require_room_for_two_checkpoints(ranks: Ranks, root: str, keep: Policy | None) -> None:
    """Raise CheckpointError, on all ranks, when the file system of `root` can never hold another
    checkpoint of the newest one's size beside it and the policy keeps only one. A collective."""
    problem = None
    if ranks.rank == 0:
        problem = _describe_missing_room(root, keep)
    problem = ranks.broadcast(problem)
    if problem is not None:
        raise CheckpointError(problem, hint=f"df -h {root}; use a larger root, or a smaller state")


def _describe_missing_room(root: str, keep: Policy | None) -> str | None:
    if keep is None or not keeps_only_newest_checkpoint(keep) or not is_path(root):
        return None
    try:
        size, facts = newest_checkpoint_bytes(root), os.statvfs(root)
    except (CheckpointError, OSError):
        return None  # whoever restores or saves says so
    capacity = facts.f_blocks * facts.f_frsize
    if facts.f_flag & os.ST_RDONLY or not size or not capacity or capacity >= 2 * size:
        return None
    return (
        f"{root} holds {capacity / 1e6:.0f} MB and its newest checkpoint has {size / 1e6:.0f} MB: only one checkpoint "
        f"fits, and keep={keep!r} keeps one. The next save would need to delete the only good checkpoint first"
    )


def keeps_only_newest_checkpoint(keep: Policy) -> bool:
    """Return whether a policy of this package lets the checkpoint before the newest be deleted."""
    two = [CheckpointFacts(str(step), (1, step, ""), step) for step in (2, 1)]
    return is_serializable(keep) and len(keep.keeps(two)) < 2


def newest_checkpoint_bytes(root: str) -> int:
    """Return the bytes of the newest committed checkpoint; 0 where there is none. Raises
    CheckpointError, OSError."""
    store = open_store(root)
    for entry in catalog.iter_checkpoints_newest_first(store):
        if entry.committed:
            body = verify.read_manifest(store, entry.checkpoint_id)
            size = body.total_bytes + body.extra.size
            if body.index:
                size += body.index.size
            return size
    return 0
