"""Captures of other nodes' ranks in this node's shared memory: a directory beside the node's own slots.

    <the user's directory>/partners/hpk-<uid>-<run hash>-<rank>-<slot>.{ctl,img}    as on the node that they are of

In a directory of their own, since whoever looks for a node's captures (an agent, a flush, the timer) must not take a
copy for what that node's ranks made. Slot number n here is a copy of slot number n there, so what the owner must not
write over is not written over here.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Callable, Iterator, List, Optional, Tuple

from hyperpod_kit.checkpoint.agent import lock, places, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import WHOLE, Key, Page, SlotState
from hyperpod_kit.checkpoint.agent.shm_slots import Slot, SlotName
from hyperpod_kit.errors import NotEnoughSharedMemory, Untrusted
from hyperpod_kit.untrusted import by_descriptor

NAME = "partners"


def folder_of(own: str) -> str:
    """The directory beside the slots in `own`, whether it is there or not."""
    return os.path.join(own, NAME)


def room_for(own: str, run: str, page: Page, number: int, extra: int) -> Slot:
    """A slot that the capture `page` of another node's rank fits into, in place of what was slot `number` there before.

    Raises NotEnoughSharedMemory, CheckpointError, OSError.
    """
    folder = folder_of(own)
    with contextlib.suppress(FileExistsError):
        by_descriptor.make_directory(folder, 0o700)
    name = SlotName(places.node_uid(), run, page.origin.rank, number)
    slot = next(shm_slots.attached(folder, [name]), None)
    if slot is not None and (slot.room[0] < page.shard.size or slot.room[1] < extra):
        slot.close()
        slot = None
    if slot is None:
        shm_slots.remove(folder, name)
        slot = shm_slots.create(folder, name, page.shard.size, extra_room=max(extra, shm_slots.EXTRA_ROOM))
    slot.put(replace(page, state=SlotState.WRITING))
    return slot


def sealed(folder: str, run: str) -> Iterator[Tuple[SlotName, Page]]:
    """The whole captures of a run that lie in `folder`. Raises OSError."""
    for slot in shm_slots.attached(folder, names(folder, run)):
        page = slot.page
        slot.close()
        if page is not None and page.state == SlotState.SEALED and page.origin.rank == slot.name.rank:
            yield slot.name, page


def names(folder: str, run: Optional[str] = None) -> List[SlotName]:
    """The slots there; none where there is no such directory. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return shm_slots.names(folder, uid=places.node_uid(), run=run)
    return []


def runs(own: str) -> List[str]:
    """The runs of which copies lie here. Raises OSError."""
    return sorted({name.run for name in names(folder_of(own))})


def find(own: str, run: str, rank: int, key: Key) -> Optional[Slot]:
    """The slot of that rank's capture, of another node's or of this one's. Raises OSError."""
    for folder in (folder_of(own), own):
        for name, page in sealed(folder, run):
            if name.rank == rank and page.key == key:
                return next(shm_slots.attached(folder, [name]), None)
    return None


def remove(own: str, run: str, *, keep: Callable[[Page], bool] = lambda page: False) -> None:
    """Free the run's copies here, except those of which `keep` says so. Raises OSError."""
    folder = folder_of(own)
    for slot in shm_slots.attached(folder, names(folder, run)):
        page = slot.page
        slot.close()
        if page is None or not keep(page):
            shm_slots.remove(folder, slot.name)


def remove_halves(own: str, run: str) -> None:
    """Free what holds no whole copy, of a run without an agent here. What cannot be read stays. Raises OSError."""
    folder = folder_of(own)
    for name in names(folder, run):
        if shm_slots.is_unmade(folder, name):
            shm_slots.remove(folder, name)
    for slot in shm_slots.attached(folder, names(folder, run)):
        page, blank = slot.page, slot.blank
        slot.close()
        if blank or (page is not None and page.state not in WHOLE):
            shm_slots.remove(folder, slot.name)


def locked(own: str, run: str) -> Optional[List[lock.Lock]]:
    """The locks of all agents of the run that have been here; None when one is at work. Raises OSError."""
    taken: List[lock.Lock] = []
    first = shm_slots.lock_file(places.node_uid(), run, 0).rpartition("-")[0]
    for name in sorted(os.listdir(own)):
        if not name.startswith(f"{first}-") or not name.endswith(".lock"):
            continue
        try:
            one = lock.try_acquire(os.path.join(own, name))
        except (Untrusted, NotEnoughSharedMemory):
            continue  # another's file: no agent of ours has it
        if one is None:
            for held in taken:
                held.release()
            return None
        taken.append(one)
    return taken
