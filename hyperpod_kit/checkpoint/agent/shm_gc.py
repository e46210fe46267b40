"""Give back the shared memory that dead runs of this user hold for nothing.

An agent does this once at its start, behind everything else. It never saves and never waits: what is worth saving is
left to its own run's next start and to `checkpoint flush`, unless it has become too old for either.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import List

from hyperpod_kit.checkpoint.agent import lock, partner_memory, places, saves_note, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import WHOLE
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import process

MAX_AGE = 86400.0
"""Seconds after which a capture that nobody came for is given up, as by flush."""


def sweep(*folders: str, but: str, max_age: float = MAX_AGE) -> List[str]:
    """Remove the segments of dead runs other than `but` that hold nothing or are too old; the runs. Raises OSError."""
    swept = []
    for folder in folders:
        names = shm_slots.names(folder, uid=places.node_uid())
        for run in sorted({name.run for name in names} - {but}):
            with contextlib.suppress(Untrusted):
                if _sweep_run(folder, run, max_age):
                    swept.append(run)
        partner_memory.remove_old(folder, max_age, but=(but,))
    return swept


def _sweep_run(folder: str, run: str, max_age: float) -> bool:
    locks: List[lock.Lock] = []
    try:
        # Listed again under the locks: then no agent is at work, and no trainer gets past the start of its own.
        for rank in sorted({name.rank for name in shm_slots.names(folder, uid=places.node_uid(), run=run)}):
            taken = lock.try_acquire(os.path.join(folder, shm_slots.lock_file(places.node_uid(), run, rank)))
            if taken is None:
                return False
            locks.append(taken)
        names = [name for name in shm_slots.names(folder, uid=places.node_uid(), run=run)]
        if not all(_worthless(folder, name, max_age) for name in names):
            return False
        saves_note.remove(folder, places.node_uid(), run)
        for name in names:
            failpoint("janitor.before_remove")
            shm_slots.remove(folder, name)
        return True
    finally:
        for taken in locks:
            taken.release()


def _worthless(folder: str, name: shm_slots.SlotName, max_age: float) -> bool:
    """Its trainer is dead, and it holds nothing, or what nobody came for. A slot that cannot be read is old or not."""
    age = max_age
    for suffix in ("ctl", "img"):
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - os.lstat(os.path.join(folder, name.file(suffix))).st_mtime
            break
    for slot in shm_slots.attached(folder, [name]):
        page = slot.page
        slot.close()
        if page is not None:
            if process.alive(page.origin.trainer):
                return False
            return page.state not in WHOLE or age > max_age
    return age > max_age
