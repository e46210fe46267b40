"""Captures of this run and rank that lie in another directory of this user's: taken into the one that is used now.

They were left before root made a directory for the user, or by a build before 0.1.0, which laid its files straight into
/dev/shm. The locks of both places are held meanwhile, so that neither an agent nor a flush is at work on them.
"""

from __future__ import annotations

import contextlib
import os
import sys

from hyperpod_kit.checkpoint.agent.shm import failure_note, lock, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.logs import read_last_line_and_remove
from hyperpod_kit.checkpoint.agent.shm.shm_slots import SlotName
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system.process import Process
from hyperpod_kit.untrusted import by_descriptor

_SLOTS = 100


def move_slots_from_other_directories(folder: str, run: str, rank: int, trainer: Process) -> None:
    """Move the slots of this run and rank from the user's other directories into `folder`, whose lock the
    caller holds.

    Raises RunIsOwned when a trainer lives that writes there, CheckpointError, OSError.
    """
    for source in shm_paths.own_directories_and_shm_root():
        if not os.path.samefile(source, folder):
            _lock_source_and_move_slots(source, folder, run, rank, trainer)


def _lock_source_and_move_slots(source: str, folder: str, run: str, rank: int, trainer: Process) -> None:
    uid = shm_paths.node_uid()
    path = os.path.join(source, shm_slots.lock_file_name(uid, run, rank))
    if lock.read_agent_and_trainer(path) is None and not shm_slots.own_slot_names(source, uid=uid, run=run, rank=rank):
        return
    try:
        source_lock = lock.acquire_ending_stale_agent(path, trainer)
    except Untrusted as err:
        # Another's file in the lock's place: then no agent of ours has one there, and none can come by it.
        print(f"hyperpod-kit: {err}", file=sys.stderr, flush=True)
        _relink_slots(source, folder, run, rank)
        return
    try:
        _relink_slots(source, folder, run, rank)
    finally:
        source_lock.release()


def _relink_slots(source: str, folder: str, run: str, rank: int) -> None:
    uid = shm_paths.node_uid()
    present_names = [
        name
        for name in shm_slots.own_slot_names(folder, uid=uid, run=run, rank=rank)
        if not shm_slots.is_without_control_page_removing_image(folder, name)
    ]
    linked_inodes = {_image_inode(folder, name) for name in present_names}
    free_names = (
        SlotName(uid, run, rank, number)
        for number in range(_SLOTS)
        if number not in {name.slot for name in present_names}
    )
    for name in shm_slots.own_slot_names(source, uid=uid, run=run, rank=rank):
        if shm_slots.is_without_control_page_removing_image(source, name):
            continue
        if _image_inode(source, name) not in linked_inodes:
            _link_files(source, folder, name, next(free_names))
        shm_slots.remove(source, name)
    last_line = read_last_line_and_remove(os.path.join(source, shm_slots.log_file_name(uid, run, rank)))
    if last_line:
        print(f"an earlier agent said: {last_line}", file=sys.stderr, flush=True)
    if rank == 0:
        failure_note.remove(source, uid, run)


def _image_inode(folder: str, name: SlotName) -> int:
    """Return the inode of the slot's image, -1 when it is missing: a move that ended between its links is
    recognized by it."""
    try:
        return os.lstat(os.path.join(folder, name.file("img"))).st_ino
    except FileNotFoundError:
        return -1


def _link_files(source: str, folder: str, name: SlotName, target: SlotName) -> None:
    """Before anything is removed: wherever this ends, one place or both have the whole slot."""
    for suffix in ("img", "ctl"):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.link(os.path.join(source, name.file(suffix)), os.path.join(folder, target.file(suffix)))
        failpoint("agent.adopting")
