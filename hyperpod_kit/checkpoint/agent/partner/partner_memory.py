"""Captures of other nodes' ranks in this node's shared memory: a directory beside the node's own slots.

    <the user's directory>/partners/hpk-<uid>-<run hash>-<rank>-<slot>.{ctl,img}    as on the node that they are of

In a directory of their own, since whoever looks for a node's captures (an agent, a flush, the timer) must not take a
copy for what that node's ranks made. Slot number n here is a copy of slot number n there, so what the owner must not
write over is not written over here.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Iterator, List, Optional, Tuple

from hyperpod_kit.checkpoint.agent.shm import lock, node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Key, Page, SlotState
from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot, SlotName
from hyperpod_kit.errors import NotEnoughSharedMemory, Untrusted
from hyperpod_kit.untrusted import by_descriptor


def copies_directory(slots_directory: str) -> str:
    """The directory beside the slots in `slots_directory`, whether it is there or not."""
    return node_tiers.PARTNER.slots_directory(slots_directory)


def reserve_slot(slots_directory: str, run: str, page: Page, number: int, extra: int) -> Slot:
    """A slot that the capture `page` of another node's rank fits into, in place of what was slot `number` there before.

    Raises NotEnoughSharedMemory, CheckpointError, OSError.
    """
    folder = copies_directory(slots_directory)
    with contextlib.suppress(FileExistsError):
        by_descriptor.make_directory(folder, 0o700)
    name = SlotName(shm_paths.node_uid(), run, page.origin.rank, number)
    slot = next(shm_slots.attach_each_mappable(folder, [name]), None)
    if slot is not None and (
        slot.image_and_extra_capacity[0] < page.shard.size or slot.image_and_extra_capacity[1] < extra
    ):
        slot.close()
        slot = None
    if slot is None:
        shm_slots.remove(folder, name)
        slot = shm_slots.create(folder, name, page.shard.size, extra_room=max(extra, shm_slots.EXTRA_ROOM))
    slot.write_page(page._replace(state=SlotState.WRITING))
    return slot


def sealed_copies(folder: str, run: str) -> Iterator[Tuple[SlotName, Page]]:
    """The whole captures of a run that lie in `folder`. Raises OSError."""
    for slot in shm_slots.attach_each_mappable(folder, copy_slot_names(folder, run)):
        page = slot.page
        slot.close()
        if page is not None and page.state == SlotState.SEALED and page.origin.rank == slot.name.rank:
            yield slot.name, page


def copy_slot_names(folder: str, run: Optional[str] = None) -> List[SlotName]:
    """The slots there; none where there is no such directory. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return shm_slots.own_slot_names(folder, uid=shm_paths.node_uid(), run=run)
    return []


def runs_with_copies(slots_directory: str) -> List[str]:
    """The runs of which copies lie here. Raises OSError."""
    return sorted({name.run for name in copy_slot_names(copies_directory(slots_directory))})


def find_sealed_copy_or_own_slot(slots_directory: str, run: str, rank: int, key: Key) -> Optional[Slot]:
    """The slot of that rank's capture, of another node's or of this one's. Raises OSError."""
    for folder in (copies_directory(slots_directory), slots_directory):
        for name, page in sealed_copies(folder, run):
            if name.rank == rank and page.key == key:
                return next(shm_slots.attach_each_mappable(folder, [name]), None)
    return None


def remove_copies(slots_directory: str, run: str, *, keep: Callable[[Page], bool] = lambda page: False) -> None:
    """Free the run's copies here, except those of which `keep` says so. Raises OSError."""
    folder = copies_directory(slots_directory)
    for slot in shm_slots.attach_each_mappable(folder, copy_slot_names(folder, run)):
        page = slot.page
        slot.close()
        if page is None or not keep(page):
            shm_slots.remove(folder, slot.name)


def remove_incomplete_copies(slots_directory: str, run: str) -> None:
    """Remove the copies of a run without an agent here that are not complete. What cannot be read stays.
    Raises OSError."""
    folder = copies_directory(slots_directory)
    for name in copy_slot_names(folder, run):
        if shm_slots.lacks_full_size_control_page(folder, name):
            shm_slots.remove(folder, name)
    for slot in shm_slots.attach_each_mappable(folder, copy_slot_names(folder, run)):
        page, blank = slot.page, slot.has_no_page_written_yet
        slot.close()
        if blank or (page is not None and page.state not in COMPLETE_STATES):
            shm_slots.remove(folder, slot.name)


def try_lock_all_agents(slots_directory: str, run: str) -> Optional[List[lock.Lock]]:
    """The locks of all agents of the run that have been here; None when one is at work. Raises OSError."""
    taken: List[lock.Lock] = []
    first = shm_slots.lock_file_name(shm_paths.node_uid(), run, 0).rpartition("-")[0]
    for name in sorted(os.listdir(slots_directory)):
        if not name.startswith(f"{first}-") or not name.endswith(".lock"):
            continue
        try:
            agent_lock = lock.try_acquire(os.path.join(slots_directory, name))
        except (Untrusted, NotEnoughSharedMemory):
            continue  # another's file: no agent of ours has it
        if agent_lock is None:
            for acquired in taken:
                acquired.release()
            return None
        taken.append(agent_lock)
    return taken
