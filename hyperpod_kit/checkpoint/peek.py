"""What the newest checkpoint says beside its tensors, before there is a state to restore.

A framework asks for its own counters before it makes an optimizer. Only the beginning of each candidate is proved, so a
restore that follows may still go back to an older one: who peeked compares the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from hyperpod_kit.checkpoint import candidates, codec
from hyperpod_kit.checkpoint.candidate_run import CandidateRun, NearerTiers
from hyperpod_kit.checkpoint.candidates import ResumeFrom
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.repository import commit_records, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.retrying import with_read_retries
from hyperpod_kit.checkpoint.results import CheckpointInfo
from hyperpod_kit.checkpoint.tiers.base import HeldShard
from hyperpod_kit.errors import NoValidCheckpoint


def peek(
    ranks: Ranks,
    store: Store,
    *,
    nearer: NearerTiers,
    copies_of_ranks: Sequence[Sequence[HeldShard]],
    resume_from: ResumeFrom,
    only_checkpoint_id: str | None = None,
) -> CheckpointInfo | None:
    """Read what rank 0 saved besides tensors in the newest candidate whose header all ranks can prove,
    the same on all ranks; None where nothing was ever committed, or the restore that follows begins
    anew.

    `only_checkpoint_id`: this checkpoint and no other. A collective. Raises NoValidCheckpoint,
    DigestUnavailable, StorageUnreadable, CheckpointError.
    """
    store = with_read_retries(store)
    rejected: list[tuple[str, str]] = []
    committed = lost = False
    for candidate in candidates.iter_candidates_newest_first(
        ranks, store, copies_of_ranks, resume_from, only_checkpoint_id
    ):
        committed = committed or candidate.committed
        lost = lost or candidate.lost
        if candidate.skip_reason:
            rejected.append((candidate.checkpoint_id, candidate.skip_reason))
            continue
        with contextlib.closing(CandidateRun(ranks, store, nearer, candidate)) as run:
            tree = run.try_tiers(rejected, lambda header: header.tree)
        if tree is not None:
            extra, save_record = ranks.broadcast((tree["extra"], tree.get("save") or {}))
            name = candidate.name
            return CheckpointInfo(
                name.step,
                name.epoch,
                name.seq,
                candidate.checkpoint_id,
                codec.decode(extra, lambda _: None, plain=True),  # type: ignore[arg-type, return-value]  # a place is all it is
                manifest.decode_numbers(save_record.get("metrics") or {}),
                tuple(rejected),
            )
    if committed and not ranks.broadcast(resume_from.fresh):
        hint = None
        if lost:
            hint = commit_records.repair_hint(store.url)
        raise NoValidCheckpoint(store.url, rejected, hint=hint)
    return None
