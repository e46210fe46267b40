"""Give back the shared memory that dead runs of this user hold for nothing.

An agent does this once at its start, behind everything else. It never saves, never waits, and removes nothing whole:
captures are left to their own run's next start and to `checkpoint flush`, which says so when it gives one up.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, List, Tuple

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.shm import failure_note, lock, node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import process


def remove_empty_segments_of_dead_runs(*folders: str, excluded_run: str) -> List[str]:
    """Remove the segments of dead runs other than `excluded_run` that hold nothing; the runs of which no slot is left.
    Raises OSError."""
    removed: List[str] = []
    for folder in folders:
        for remove_empty in _REMOVE_EMPTY:
            removed += remove_empty(folder, excluded_run)
    return removed


def _remove_empty_slots(folder: str, excluded_run: str) -> List[str]:
    removed = []
    names = shm_slots.own_slot_names(folder, uid=shm_paths.node_uid())
    for run in sorted({name.run for name in names} - {excluded_run}):
        with contextlib.suppress(Untrusted):
            if _remove_run_if_dead_and_empty(folder, run):
                removed.append(run)
    return removed


def _remove_run_if_dead_and_empty(folder: str, run: str) -> bool:
    locks: List[lock.Lock] = []
    try:
        # Listed again under the locks: then no agent is at work, and no trainer gets past the start of its own.
        for rank in sorted({name.rank for name in shm_slots.own_slot_names(folder, uid=shm_paths.node_uid(), run=run)}):
            taken = lock.try_acquire(os.path.join(folder, shm_slots.lock_file_name(shm_paths.node_uid(), run, rank)))
            if taken is None:
                return False
            locks.append(taken)
        names = [name for name in shm_slots.own_slot_names(folder, uid=shm_paths.node_uid(), run=run)]
        if not all(_is_dead_and_holds_no_capture(folder, name) for name in names):
            return False
        failure_note.remove(folder, shm_paths.node_uid(), run)
        for name in names:
            failpoint("janitor.before_remove")
            shm_slots.remove(folder, name)
        return True
    finally:
        for taken in locks:
            taken.release()


def _is_dead_and_holds_no_capture(folder: str, name: shm_slots.SlotName) -> bool:
    """Its trainer is dead, and it holds no capture. Nobody knows of a slot that cannot be read."""
    if shm_slots.lacks_full_size_control_page(folder, name):
        return True
    for slot in shm_slots.attach_each_mappable(folder, [name]):
        page, blank = slot.page, slot.has_no_page_written_yet
        slot.close()
        if page is None:
            return blank
        return page.state not in COMPLETE_STATES and not process.is_alive(page.origin.trainer)
    return False


def _remove_incomplete_copies(folder: str, excluded_run: str) -> List[str]:
    for run in partner_memory.runs_with_copies(folder):
        if run != excluded_run:
            _remove_incomplete_copies_if_no_agent(folder, run)
    return []


def _remove_incomplete_copies_if_no_agent(folder: str, run: str) -> None:
    """Half copies of other nodes' captures, where no agent of the run is here to make them whole."""
    locks = partner_memory.try_lock_all_agents(folder, run)
    if locks is None:
        return
    try:
        partner_memory.remove_incomplete_copies(folder, run)
    finally:
        for taken in locks:
            taken.release()


_REMOVE_EMPTY: Tuple[Callable[[str, str], List[str]], ...] = node_tiers.require_handler_for_each(
    "the removal of empty slots",
    {node_tiers.MEMORY: _remove_empty_slots, node_tiers.PARTNER: _remove_incomplete_copies},
)
