"""The captures of one run on this node, brought to storage: the newest first, all ranks of one at a time.

Each shard is written close behind its sealing, as agents do it, and nothing is waited for but storage.
"""

from __future__ import annotations

import secrets
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent import assemble, flush_shards, handoff_commit, persist, replicas, shard_report
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

    attempt: Optional[str]
    note: str
    done: bool
    lost: str = ""


def steps_of(pages: Iterable[Page]) -> str:
    """Which captures these are, for people; the newest first."""
    steps = {page.key: page.step for page in pages}
    return ", ".join(f"step {steps[key]} (seq {key[1]})" for key in sorted(steps, reverse=True))


def storage_of(page: Page) -> Tuple[Store, Tuple[int, int]]:
    """The root that a capture belongs to, and (epoch, seq) of the newest commit there. Raises CheckpointError when the
    root is not its run's, OSError."""
    store = open_store(page.origin.root)
    identity.confirm(store, identity.RunIdentity(page.origin.run, page.origin.run_id))
    return store, _committed(store)


def _committed(store: Store) -> Tuple[int, int]:
    """(epoch, seq) of the newest commit; one whose manifest is torn or whose files are not all there, with their
    sizes, is none."""
    for entry in selection.walk(store):
        try:
            found = verify.read_manifest(store, entry.attempt)
            sizes = store.sizes(entry.attempt)
            if all(sizes.get(record.file) == record.size for record in (*found.shards, found.extra)):
                return entry.name.epoch, entry.name.seq
        except (CheckpointError, FileNotFoundError):
            continue
    return 0, 0


def wanted(pages: Iterable[Page], committed: Tuple[int, int]) -> List[Key]:
    """The captures that storage is to have, newest first: all that are newer than what it has. Those for memory come
    to it only where no newer one does, see `save`."""
    return sorted({page.key for page in pages if page.key[:2] > committed}, reverse=True)


def save(run: str, captured: Captured, pages: Sequence[Page], progress: FlushProgress) -> Saved:
    """What became of a run's captures.

    `pages`: of all slots, for which ranks of a start live on this node. Raises CheckpointError, OSError when storage
    does not take it: what was not written yet is then needed.
    """
    first = next(iter(captured[max(captured)].values())).page
    store, committed = storage_of(first)
    keys = wanted((one.page for slots in captured.values() for one in slots.values()), committed)
    if not keys:
        return Saved(None, f"already committed up to seq {committed[1]}", True)
    attempts: List[str] = []
    notes: List[str] = []
    unsealed: List[Key] = []
    for key in keys:
        if attempts and next(iter(captured[key].values())).page.memory:
            continue
        progress.newest(run, key[0], key[1], next(iter(captured[key].values())).page.step)
        try:
            attempt, note = _save_one(run, store, captured[key], pages, progress)
        except flush_shards.NotSealed as err:
            attempt, note = None, f"seq {key[1]}: {err}"
            unsealed.append(key)
        notes.append(note)
        attempts += [attempt] if attempt else []
    # Where none can be sealed it may be this interpreter that cannot.
    done = len(unsealed) < len(keys)
    lost = steps_of(next(iter(captured[key].values())).page for key in unsealed) if done else ""
    return Saved(attempts[0] if attempts else None, "; ".join(notes), done, lost)


def _save_one(
    run: str, store: Store, slots: Mapping[int, OpenSlot], pages: Sequence[Page], progress: FlushProgress
) -> Tuple[Optional[str], str]:
    """(the attempt, where it is committed; what happened). Raises OSError, CheckpointError when storage does not take
    it; a capture that cannot be saved at all is told of."""
    page = next(iter(slots.values())).page
    seq, world = page.seq, page.origin.world
    if replicas.difference({rank: replicas.of_slot(one.slot) for rank, one in slots.items()}) is not None:
        return None, f"seq {seq}: its ranks differ in tensors that they hold alike"
    here = {one.origin.rank for one in pages if one.epoch == page.epoch}
    whole = sorted(slots) == list(range(world))
    if not whole and (len(here) == world or set(slots) != here):
        return None, f"seq {seq} was never whole"
    how = progress.how(run)
    if whole:
        attempt = page.attempt(secrets.token_hex(3))
        records = flush_shards.write_all(slots, lambda rank, shard: persist.write_shard(shard, store, attempt, how))
        reports = {rank: shard_report.report_of(slots[rank].slot, record) for rank, record in records.items()}
        made = assemble.assemble(reports, {"hyperpod_kit": version(), "writer": "flush"})
        commit.commit(store, attempt, made.manifest, made.extra, made.columns)
        return attempt, f"committed {attempt}"
    if handoff_commit.hand_in(store, slots, how):
        attempt = handoff_commit.attempt_of(page)
        return attempt, f"committed {attempt}"
    return None, f"seq {seq}: handed in ranks {sorted(here)} of {world}"
