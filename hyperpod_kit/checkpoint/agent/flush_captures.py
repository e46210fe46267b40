"""The captures of one run on this node, brought to storage: the newest first, all ranks of one at a time.

Each shard is written close behind its sealing, as agents do it, and nothing is waited for but storage.
"""

from __future__ import annotations

import secrets
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent import assemble, flush_shards, partial_commit, persist, replicas, shard_report
from hyperpod_kit.checkpoint.agent.control_page import Key, Page
from hyperpod_kit.checkpoint.agent.flush_progress import FlushProgress
from hyperpod_kit.checkpoint.agent.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository import commit, identity, selection, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version

Captured = Mapping[Key, Mapping[int, OpenSlot]]
"""Rank -> the slot that holds its part, of each capture."""


class Saved(NamedTuple):
    """The newest attempt that was committed, what happened, whether nothing here is needed any more, and what then is
    lost although it was whole, "" for nothing."""

    checkpoint_id: Optional[str]
    note: str
    done: bool
    lost: str = ""


def describe_steps(pages: Iterable[Page]) -> str:
    """Which captures these are, for people; the newest first."""
    steps = {page.key: page.step for page in pages}
    return ", ".join(f"step {steps[key]} (seq {key[1]})" for key in sorted(steps, reverse=True))


def open_storage_and_find_newest_epoch_seq(page: Page) -> Tuple[Store, Tuple[int, int]]:
    """Return the store of the root that a capture belongs to, and (epoch, seq) of its newest commit.

    Raises CheckpointError when the root is not its run's, OSError.
    """
    store = open_store(page.origin.root)
    identity.require_run_identity(store, identity.RunIdentity(page.origin.run, page.origin.run_id))
    return store, _newest_committed_epoch_seq(store)


def _newest_committed_epoch_seq(store: Store) -> Tuple[int, int]:
    """(epoch, seq) of the newest commit; one whose manifest is torn or whose files are not all there, with their
    sizes, is none."""
    for entry in selection.iter_committed_not_excluded_newest_first(store):
        try:
            checkpoint_manifest = verify.read_manifest(store, entry.checkpoint_id)
            sizes = store.sizes(entry.checkpoint_id)
            if all(
                sizes.get(record.file) == record.size
                for record in (*checkpoint_manifest.shards, checkpoint_manifest.extra)
            ):
                return entry.name.epoch, entry.name.seq
        except (CheckpointError, FileNotFoundError):
            continue
    return 0, 0


def newer_captures(pages: Iterable[Page], committed: Tuple[int, int]) -> List[Key]:
    """Return the keys of the captures that are newer than what storage has, newest first. Those for memory are
    saved only where no newer one is, see `save`."""
    return sorted({page.key for page in pages if page.key[:2] > committed}, reverse=True)


def save(run: str, captured: Captured, pages: Sequence[Page], progress: FlushProgress) -> Saved:
    """Save a run's captures that are newer than what its root has, newest first, and return what became of
    them.

    `pages`: of all slots, for which ranks of a start live on this node. Raises CheckpointError, OSError
    when storage does not take it: what was not written yet is then needed.
    """
    first = next(iter(captured[max(captured)].values())).page
    store, committed = open_storage_and_find_newest_epoch_seq(first)
    keys = newer_captures((slot.page for slots in captured.values() for slot in slots.values()), committed)
    if not keys:
        return Saved(None, f"already committed up to seq {committed[1]}", True)
    checkpoint_ids: List[str] = []
    notes: List[str] = []
    unsealed: List[Key] = []
    for key in keys:
        if checkpoint_ids and next(iter(captured[key].values())).page.is_memory_only:
            continue
        progress.set_next_capture(run, key[0], key[1], next(iter(captured[key].values())).page.step)
        try:
            checkpoint_id, note = _commit_or_hand_in_capture(run, store, captured[key], pages, progress)
        except flush_shards.NotSealed as err:
            checkpoint_id, note = None, f"seq {key[1]}: {err}"
            unsealed.append(key)
        notes.append(note)
        checkpoint_ids += [checkpoint_id] if checkpoint_id else []
    # Where none can be sealed it may be this interpreter that cannot.
    done = len(unsealed) < len(keys)
    lost = ""
    if done:
        lost = describe_steps(next(iter(captured[key].values())).page for key in unsealed)
    return Saved(checkpoint_ids[0] if checkpoint_ids else None, "; ".join(notes), done, lost)


def _commit_or_hand_in_capture(
    run: str, store: Store, slots: Mapping[int, OpenSlot], pages: Sequence[Page], progress: FlushProgress
) -> Tuple[Optional[str], str]:
    """(the attempt, where it is committed; what happened). Raises OSError, CheckpointError when storage does not take
    it; a capture that cannot be saved at all is told of."""
    page = next(iter(slots.values())).page
    seq, world = page.seq, page.origin.world
    if (
        replicas.find_difference({rank: replicas.digests_by_holders_in_slot(slot.slot) for rank, slot in slots.items()})
        is not None
    ):
        return None, f"seq {seq}: its ranks differ in tensors that they hold alike"
    local_ranks = {other.origin.rank for other in pages if other.epoch == page.epoch}
    is_complete = sorted(slots) == list(range(world))
    if not is_complete and (len(local_ranks) == world or set(slots) != local_ranks):
        return None, f"seq {seq} was never whole"
    options = progress.write_options_counting_bytes(run)
    if is_complete:
        checkpoint_id = page.checkpoint_id(secrets.token_hex(3))
        records = flush_shards.seal_and_write_all(
            slots, lambda rank, shard: persist.write_shard(shard, store, checkpoint_id, options)
        )
        reports = {rank: shard_report.report_of(slots[rank].slot, record) for rank, record in records.items()}
        assembled = assemble.build_commit_files(reports, {"hyperpod_kit": version(), "writer": "flush"})
        commit.commit(store, checkpoint_id, assembled.manifest, assembled.extra, assembled.index_bytes)
        return checkpoint_id, f"committed {checkpoint_id}"
    if partial_commit.write_shards_and_try_commit(store, slots, options):
        checkpoint_id = partial_commit.shared_flush_checkpoint_id(page)
        return checkpoint_id, f"committed {checkpoint_id}"
    return None, f"seq {seq}: handed in ranks {sorted(local_ranks)} of {world}"
