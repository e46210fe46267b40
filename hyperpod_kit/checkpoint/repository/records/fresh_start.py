"""Beginning anew at step 0 where checkpoints were committed and none can be restored: because a person said so.

The record (`rollbacks`) leaves all that is there and all that other records name, so that the starts that follow do not
ask again. Nothing is deleted, and `job rewind` takes up again what turns out to be whole.
"""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.records import catalog, commit_records, rollbacks
from hyperpod_kit.checkpoint.repository.records.rollbacks import FreshStart
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import CheckpointError

_TRIES = 10


def record_root_fresh_start(
    store_or_root: StoreOrRoot, *, by: str, last_excluded_epoch: Optional[int] = None
) -> FreshStart:
    """Record on the root that the run begins anew at step 0, which excludes what starts up to
    `last_excluded_epoch` have saved (None: up to the highest epoch), and whatever else the records name.
    Nothing is deleted.

    Raise CheckpointError, OSError.
    """
    store = as_store(store_or_root)
    facts = commit_records.collect_commit_evidence(store)
    lost = commit_records.lost_commits_assuming_no_manifests(facts) + commit_records.lost_commits_assuming_no_manifests(
        facts, kit_checkpoints=False
    )
    if last_excluded_epoch is None:
        epoch = catalog.highest_epoch_and_seq(store)[0]
    else:
        epoch = last_excluded_epoch
    named = [commit.id_or_record_file for commit in lost if not _is_of_epoch_up_to(commit.checkpoint_id, epoch)]
    for _ in range(_TRIES):
        try:
            return rollbacks.record_fresh_start(store, epoch, named=named, by=by)
        except FileExistsError:
            continue
    raise CheckpointError(
        f"{store.url}: other processes keep rewinding it at the same time", hint="find the other processes"
    )


def _is_of_epoch_up_to(checkpoint_id: str, epoch: int) -> bool:
    name = layout.parse_checkpoint_id(checkpoint_id)
    return name is not None and name.epoch <= epoch
