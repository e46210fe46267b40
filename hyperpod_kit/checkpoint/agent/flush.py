"""Bring to storage what dead trainers left in shared memory, then give the memory back.

For the epilog and for people: runs on system Python, without torch and without an agent. What is not whole on this
node is handed in, and committed by the last node that does so. What cannot be written stays for a restart of the job,
with the reason, until it is too old.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from hyperpod_kit import __version__
from hyperpod_kit.checkpoint.agent import (
    assemble,
    handoff_commit,
    lock,
    logs,
    persist,
    places,
    replicas,
    saves_note,
    seal,
    shm_slots,
)
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.repository import commit, identity, selection, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory, Untrusted
from hyperpod_kit.system import process

_POLL = 0.1


class FlushOutcome(NamedTuple):
    """What became of one run's segments here: the attempt that was committed, whether the memory was freed, why."""

    run: str
    attempt: Optional[str]
    removed: bool
    note: str


def flush(
    *, folder: Optional[str] = None, job: Optional[str] = None, timeout: float = 45.0, max_age: float = 86400.0
) -> List[FlushOutcome]:
    """Flush this user's runs (of Slurm job `job`, or all). Returns within about `timeout` seconds plus one write.

    `folder`: the node's shared memory, in which the user's directories are. `max_age` in seconds: older segments that
    cannot be committed are removed, those of other jobs too; and so are slots of dead trainers that hold nothing,
    whosever they were. What goes wrong with one run is said of that one, and ends nothing for the others.
    Raises OSError when shared memory cannot be listed.
    """
    end = time.monotonic() + timeout
    out = []
    for place in places.of_mine(folder or ""):
        names = shm_slots.names(place, uid=places.node_uid())
        for run in sorted({name.run for name in names}):
            mine = [name for name in names if name.run == run]
            try:
                outcome = _one_run(place, run, mine, job, end, max_age)
            except Exception as err:
                outcome = FlushOutcome(run, None, False, f"{type(err).__name__}: {err}")
            if outcome is not None:
                out.append(outcome)
    return out


def _one_run(
    folder: str, run: str, names: List[shm_slots.SlotName], job: Optional[str], end: float, max_age: float
) -> Optional[FlushOutcome]:
    """What became of a run; None when there is nothing to say to whoever asked for `job`."""
    slots = _open(folder, names)
    ours = job is None or any(str(one.page.origin.job.get("slurm_job_id")) == job for one in slots)
    if not ours and any(one.page.state != SlotState.FREE for one in slots) and _age(folder, names) <= max_age:
        return None
    outcome = _flush_run(folder, run, names, end if ours else 0.0, max_age)
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


def _flush_run(folder: str, run: str, names: List[shm_slots.SlotName], end: float, max_age: float) -> FlushOutcome:
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
                    return FlushOutcome(run, None, False, f"its trainer (pid {held[1].pid}) is alive")
                if time.monotonic() > end:
                    return FlushOutcome(run, None, False, f"the agent of rank {rank} is still at work")
                time.sleep(_POLL)
                taken = lock.try_acquire(path)
            locks.append(taken)
        for name in names:
            # Only now: a trainer that is making a slot has its image before its control page.
            shm_slots.remove_stray_image(folder, name)
        return _settle(folder, run, names, max_age)
    finally:
        for taken in locks:
            taken.release()


def _settle(folder: str, run: str, names: List[shm_slots.SlotName], max_age: float) -> FlushOutcome:
    slots = _open(folder, names)
    alive = next((one.page.origin.trainer for one in slots if process.alive(one.page.origin.trainer)), None)
    if alive is not None:
        return FlushOutcome(run, None, False, f"its trainer (pid {alive.pid}) is alive")
    sealed: Dict[Key, Dict[int, shm_slots.OpenSlot]] = {}
    notes = []
    for slot, page in slots:
        try:
            if page.state == SlotState.CAPTURED:
                page = seal.seal(slot)
        except CheckpointError as err:
            notes.append(str(err))
        if page.state == SlotState.SEALED:
            sealed.setdefault(page.key, {})[page.origin.rank] = shm_slots.OpenSlot(slot, page)
    if not sealed and not notes:
        return _remove(folder, run, names, None, "nothing was captured")
    attempt: Optional[str] = None
    try:
        attempt, note, done = _persist_newest(sealed, [page for _, page in slots])
        notes.append(note)
    except (CheckpointError, OSError) as err:
        notes.append(f"not persisted: {verify.reason_of(err)}")
        done = False
    if done:
        return _remove(folder, run, names, attempt, "; ".join(notes))
    age = _age(folder, names)
    if age > max_age:
        return _remove(folder, run, names, attempt, "; ".join(notes) + f"; removed, {age / 3600:.1f} hours old")
    return FlushOutcome(run, attempt, False, "; ".join(notes))


def _remove(folder: str, run: str, names: List[shm_slots.SlotName], attempt: Optional[str], note: str) -> FlushOutcome:
    try:
        saves_note.remove(folder, places.node_uid(), run)
        for name in names:
            shm_slots.remove(folder, name)
    except OSError as err:
        return FlushOutcome(run, attempt, False, f"{note}; not removed: {err.strerror}")
    return FlushOutcome(run, attempt, True, note)


def _persist_newest(
    sealed: Dict[Key, Dict[int, shm_slots.OpenSlot]], pages: List[Page]
) -> Tuple[Optional[str], str, bool]:
    """(attempt committed, what happened, whether nothing here is needed any more). Raises as its parts.

    `pages`: of all slots, for which ranks of a start live on this node.
    """
    newest = max(sealed, default=None)
    if newest is None:
        return None, "nothing is sealed", False
    page = next(iter(sealed[newest].values())).page
    store = open_store(page.origin.root)
    identity.confirm(store, identity.RunIdentity(page.origin.run, page.origin.run_id))
    committed = _committed(store)
    if committed >= newest[:2]:
        return None, f"already committed up to seq {committed[1]}", True
    wanted = sorted(key for key in sealed if key[:2] > committed)
    refused = [
        key
        for key in wanted
        if replicas.difference({rank: replicas.of_slot(one.slot) for rank, one in sealed[key].items()}) is not None
    ]
    wanted = [key for key in wanted if key not in refused]
    whole = max([key for key in wanted if sorted(sealed[key]) == list(range(page.origin.world))], default=None)
    attempt = _persist(store, sealed[whole]) if whole is not None else None
    notes = [f"seq {key[1]}: its ranks differ in tensors that they hold alike" for key in refused]
    notes += [f"committed {attempt}"] if attempt else []
    for key in [key for key in wanted if whole is None or key > whole]:
        here = {page.origin.rank for page in pages if page.epoch == key[0]}
        if len(here) == page.origin.world or set(sealed[key]) != here:
            notes.append(f"seq {key[1]} was never whole")
        elif handoff_commit.hand_in(store, sealed[key]):
            attempt = handoff_commit.attempt_of(next(iter(sealed[key].values())).page)
            notes.append(f"committed {attempt}")
        else:
            notes.append(f"seq {key[1]}: handed in ranks {sorted(here)} of {page.origin.world}")
    return attempt, "; ".join(notes), True


def _committed(store: Store) -> Tuple[int, int]:
    """(epoch, seq) of the newest commit; one whose manifest is torn or whose files are not all there is none."""
    for entry in selection.walk(store):
        try:
            found = verify.read_manifest(store, entry.attempt)
            names = [record.file for record in (*found.shards, found.extra)]
            if set(names) <= set(store.list(entry.attempt)):
                return entry.name.epoch, entry.name.seq
        except (CheckpointError, FileNotFoundError):
            continue
    return 0, 0


def _persist(store: Store, ranks: Dict[int, shm_slots.OpenSlot]) -> str:
    first = ranks[0].page
    attempt = first.attempt(secrets.token_hex(3))
    reports = {}
    for rank, (slot, _) in sorted(ranks.items()):
        reports[rank] = assemble.report_of(slot, persist.write_shard(seal.SlotShard(slot), store, attempt))
    made = assemble.assemble(reports, {"hyperpod_kit": __version__, "writer": "flush"})
    commit.commit(store, attempt, made.manifest, made.extra, made.columns)
    return attempt
