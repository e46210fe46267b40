"""Bring to storage what dead trainers left in shared memory, then give the memory back.

For the Epilog's unit and for people: runs on system Python, without torch and without an agent. All captures that are
newer than what is committed are saved, the newest first, all ranks of the node at a time. What is not whole on this
node is handed in, and committed by the last node that does so. What cannot be written stays for a restart of the job,
with the reason, until it is too old.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.agent import (
    flush_captures,
    lock,
    logs,
    movement,
    partner_memory,
    places,
    saves_note,
    shm_slots,
)
from hyperpod_kit.checkpoint.agent.control_page import WHOLE, Key, SlotState
from hyperpod_kit.checkpoint.agent.flush_progress import FlushProgress, Sign
from hyperpod_kit.checkpoint.repository import catalog, flush_note, verify
from hyperpod_kit.checkpoint.repository.flush_note import FlushNote
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory, Untrusted
from hyperpod_kit.system import process

_POLL = 0.1

AT_WORK = 10.0
"""Seconds for which an agent is waited for after each sign that it gets on, however long it takes."""


class FlushOutcome(NamedTuple):
    """What became of one run's segments here: the attempt that was committed, whether the memory was freed, why.

    `again`: what was not freed may be saved by another try; not where a living trainer has it.
    """

    run: str
    attempt: Optional[str]
    removed: bool
    note: str
    again: bool = True


def flush(
    *,
    folder: Optional[str] = None,
    job: Optional[str] = None,
    timeout: float = 45.0,
    max_age: float = 86400.0,
    tell: Callable[[Sign], None] = lambda sign: None,
) -> List[FlushOutcome]:
    """Flush this user's runs (of Slurm job `job`, or all). Returns within about `timeout` seconds plus what it writes.

    `folder`: the node's shared memory, in which the user's directories are. `max_age` in seconds: older segments that
    cannot be committed are removed, those of other jobs too; and so are slots of dead trainers that hold nothing,
    whosever they were, and copies of other nodes' captures of runs that have left nothing else here. `tell` hears each
    second how far it is. What goes wrong with one run is said of that one, and ends nothing for the others.
    Raises OSError when shared memory cannot be listed.
    """
    end = time.monotonic() + timeout
    out = []
    runs: List[Tuple[str, str, List[shm_slots.SlotName]]] = []
    for place in places.of_mine(folder or ""):
        names = shm_slots.names(place, uid=places.node_uid())
        here = sorted({name.run for name in names})
        runs += [(place, run, [name for name in names if name.run == run]) for run in here]
        with contextlib.suppress(OSError):
            # Copies of a run that has slots of its own here go with those; of another one nobody comes for them.
            partner_memory.remove_old(place, max_age, but=here)
    with contextlib.closing(FlushProgress(tell)) as progress:
        for place, run, mine in runs:
            with contextlib.suppress(CheckpointError, OSError):
                _announce(place, run, mine, job, progress)
        progress.announced()
        for place, run, mine in runs:
            try:
                outcome = _one_run(place, run, mine, job, end, max_age, progress)
            except Exception as err:
                outcome = FlushOutcome(run, None, False, f"{type(err).__name__}: {err}")
            progress.end(run)
            if outcome is not None:
                out.append(outcome)
    return out


def _is_of(slots: List[shm_slots.OpenSlot], job: Optional[str]) -> bool:
    return job is None or any(str(one.page.origin.job.get("slurm_job_id")) == job for one in slots)


def _announce(
    folder: str, run: str, names: List[shm_slots.SlotName], job: Optional[str], progress: FlushProgress
) -> None:
    """Note on storage what will come, before anything is waited for. Raises CheckpointError, OSError."""
    slots = _open(folder, names)
    try:
        whole = [page for _, page in slots if page.state in WHOLE]
        if not whole or not _is_of(slots, job) or any(process.alive(page.origin.trainer) for page in whole):
            return
        store, committed = flush_captures.storage_of(whole[0])
        coming = [page for page in whole if page.key[:2] > committed]
        if coming:
            newest = max(coming, key=lambda page: page.key)
            size = sum(page.shard.size for page in coming)
            job_id = str(newest.origin.job.get("slurm_job_id", ""))
            there = catalog.newest_committed(store) or ""
            progress.begin(
                run,
                store,
                FlushNote(flush_note.here(), job_id, newest.epoch, newest.seq, newest.step, size, committed=there),
            )
    finally:
        for one in slots:
            one.slot.close()


def _one_run(
    folder: str,
    run: str,
    names: List[shm_slots.SlotName],
    job: Optional[str],
    end: float,
    max_age: float,
    progress: FlushProgress,
) -> Optional[FlushOutcome]:
    """What became of a run; None when there is nothing to say to whoever asked for `job`."""
    slots = _open(folder, names)
    ours = _is_of(slots, job)
    if not ours and any(one.page.state != SlotState.FREE for one in slots) and _age(folder, names) <= max_age:
        return None
    outcome = _flush_run(folder, run, names, end if ours else 0.0, max_age, progress)
    if outcome.removed:
        outcome = outcome._replace(note=outcome.note + _sweep(folder, run))
    return outcome if ours or outcome.removed else None


def _age(folder: str, names: List[shm_slots.SlotName]) -> float:
    """Seconds since one of these slots was written."""
    times = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            times.append(os.lstat(os.path.join(folder, name.file("ctl"))).st_mtime)
    return time.time() - max(times, default=0.0)


def _open(folder: str, names: List[shm_slots.SlotName]) -> List[shm_slots.OpenSlot]:
    found = []
    for slot in shm_slots.attached(folder, names):
        page = slot.page
        if page is not None:
            found.append(shm_slots.OpenSlot(slot, page))
    return found


def _sweep(folder: str, run: str) -> str:
    """Remove a finished run's agent logs; the last line of each, which says why an agent died."""
    said = ""
    for entry in sorted(os.listdir(folder)):
        if entry.startswith(f"hpk-{places.node_uid()}-{run}-") and entry.endswith(".log"):
            words = logs.last_words(os.path.join(folder, entry))
            said += f"; {entry}: {words}" if words else ""
    return said


def _flush_run(
    folder: str, run: str, names: List[shm_slots.SlotName], end: float, max_age: float, progress: FlushProgress
) -> FlushOutcome:
    locks: List[lock.Lock] = []
    try:
        for rank in sorted({name.rank for name in names}):
            path = os.path.join(folder, shm_slots.lock_file(places.node_uid(), run, rank))
            try:
                taken = lock.try_acquire(path)
            except (Untrusted, NotEnoughSharedMemory):
                # Another's file is in its place, or there is no room for one: no agent of ours has one either, and
                # none can come by one. What is to be saved is worth more than a lock against nobody.
                continue
            while taken is None:
                held = lock.holder(path)
                if held is not None and process.alive(held[1]):
                    return FlushOutcome(run, None, False, f"its trainer (pid {held[1].pid}) is alive", again=False)
                if held is not None and held[1] == lock.NOBODY and process.alive(held[0]):
                    return FlushOutcome(run, None, False, f"another flush (pid {held[0].pid}) is at work")
                if lock.still_for(path) < AT_WORK:
                    movement.moved()
                if time.monotonic() > end and lock.still_for(path) > AT_WORK:
                    return FlushOutcome(run, None, False, f"the agent of rank {rank} is still at work")
                time.sleep(_POLL)
                taken = lock.try_acquire(path)
            locks.append(taken)
        progress.holds(locks)
        for name in names:
            # Only now: a trainer that is making a slot has its image before its control page.
            shm_slots.remove_stray_image(folder, name)
        return _settle(folder, run, names, max_age, progress)
    finally:
        progress.holds([])
        for taken in locks:
            taken.release()


def _settle(
    folder: str, run: str, names: List[shm_slots.SlotName], max_age: float, progress: FlushProgress
) -> FlushOutcome:
    slots = _open(folder, names)
    alive = next((one.page.origin.trainer for one in slots if process.alive(one.page.origin.trainer)), None)
    if alive is not None:
        return FlushOutcome(run, None, False, f"its trainer (pid {alive.pid}) is alive", again=False)
    captured: Dict[Key, Dict[int, shm_slots.OpenSlot]] = {}
    for slot, page in slots:
        if page.state in WHOLE:
            captured.setdefault(page.key, {})[page.origin.rank] = shm_slots.OpenSlot(slot, page)
    if not captured:
        return _remove(folder, run, names, None, "nothing was captured")
    attempt: Optional[str] = None
    try:
        attempt, note, done = flush_captures.save(run, captured, [page for _, page in slots], progress)
    except (CheckpointError, OSError) as err:
        note, done = f"not persisted: {verify.reason_of(err)}", False
    if done:
        return _remove(folder, run, names, attempt, note)
    age = _age(folder, names)
    if age > max_age:
        return _remove(folder, run, names, attempt, f"{note}; removed, {age / 3600:.1f} hours old")
    return FlushOutcome(run, attempt, False, note)


def _remove(folder: str, run: str, names: List[shm_slots.SlotName], attempt: Optional[str], note: str) -> FlushOutcome:
    try:
        saves_note.remove(folder, places.node_uid(), run)
        for name in names:
            shm_slots.remove(folder, name)
        partner_memory.remove(folder, run)
    except OSError as err:
        return FlushOutcome(run, attempt, False, f"{note}; not removed: {err.strerror}")
    return FlushOutcome(run, attempt, True, note)
