"""Give back the shared memory that dead runs of this user hold for nothing.

An agent does this once at its start, behind everything else. It never saves, never waits, and removes nothing whole:
captures are left to their own run's next start and to `checkpoint flush`, which says so when it gives one up.
"""

from __future__ import annotations

import contextlib
import os
from typing import List

from hyperpod_kit.checkpoint.agent import failure_note, lock, partner_memory, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import COMPLETE_STATES
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import process


def remove_dead_segments(*folders: str, excluded_run: str) -> List[str]:
    """Remove the segments of dead runs other than `excluded_run` that hold nothing; the runs. Raises OSError."""
    removed = []
    for folder in folders:
        names = shm_slots.own_slot_names(folder, uid=shm_paths.node_uid())
        for run in sorted({name.run for name in names} - {excluded_run}):
            with contextlib.suppress(Untrusted):
                if _remove_run_if_dead_and_empty(folder, run):
                    removed.append(run)
        for run in sorted(
            {name.run for name in partner_memory.names(partner_memory.copies_directory(folder))} - {excluded_run}
        ):
            _remove_half_copies(folder, run)
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
        if not all(_holds_nothing(folder, name) for name in names):
            return False
        failure_note.remove(folder, shm_paths.node_uid(), run)
        for name in names:
            failpoint("janitor.before_remove")
            shm_slots.remove(folder, name)
        return True
    finally:
        for taken in locks:
            taken.release()


def _holds_nothing(folder: str, name: shm_slots.SlotName) -> bool:
    """Its trainer is dead, and it holds no capture. Nobody knows of a slot that cannot be read."""
    if shm_slots.is_incomplete(folder, name):
        return True
    for slot in shm_slots.attached(folder, [name]):
        page, blank = slot.page, slot.is_blank
        slot.close()
        if page is None:
            return blank
        return page.state not in COMPLETE_STATES and not process.is_alive(page.origin.trainer)
    return False


def _remove_half_copies(folder: str, run: str) -> None:
    """Half copies of other nodes' captures, where no agent of the run is here to make them whole."""
    locks = partner_memory.lock_agents(folder, run)
    if locks is None:
        return
    try:
        partner_memory.remove_incomplete_copies(folder, run)
    finally:
        for taken in locks:
            taken.release()
