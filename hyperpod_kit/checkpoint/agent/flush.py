"""Bring to storage what dead trainers left in shared memory, then give the memory back.

For the Epilog's unit and for people: runs on system Python, without torch and without an agent. All captures that are
newer than what is committed are saved, the newest first, all ranks of the node at a time. What is not whole on this
node is handed in, and committed by the last node that does so. What cannot be written stays for a restart of the job,
with the reason, until it is too old (see capture_age): then it is given up, and the outcome says what is lost.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.agent import (
    capture_age,
    flush_captures,
    flush_copies,
    lock,
    logs,
    losses_announced,
    movement,
    places,
    saves_note,
    shm_slots,
)
from hyperpod_kit.checkpoint.agent.capture_age import MAX_AGE, Clock
from hyperpod_kit.checkpoint.agent.control_page import WHOLE, Key, Page
from hyperpod_kit.checkpoint.agent.flush_progress import FlushProgress, Sign
from hyperpod_kit.checkpoint.repository import catalog, flush_note, verify
from hyperpod_kit.checkpoint.repository.flush_note import FlushNote
from hyperpod_kit.errors import CheckpointError, GaveUp, NotEnoughSharedMemory, Untrusted
from hyperpod_kit.system import process

_POLL = 0.1

AT_WORK = 10.0
"""Seconds for which an agent is waited for after each sign that it gets on, however long it takes."""


class FlushOutcome(NamedTuple):
    """What became of one run's segments here: the attempt that was committed, whether the memory was freed, why.

    `again`: what was not freed may be saved by another try; not where a living trainer has it. `lost`: what was whole
    here, was given up, and is nowhere any more; the note says it too.
    """

    run: str
    attempt: Optional[str]
    removed: bool
    note: str
    again: bool = True
    lost: str = ""


def exit_code(outcomes: Iterable[FlushOutcome]) -> int:
    """Of a program that has flushed: 86 when something whole was given up, 1 when something stays, else 0."""
    seen = list(outcomes)
    if any(one.lost for one in seen):
        return GaveUp.exit_code
    return 0 if all(one.removed for one in seen) else 1


def flush(
    *,
    folder: Optional[str] = None,
    job: Optional[str] = None,
    timeout: float = 45.0,
    max_age: float = MAX_AGE,
    tell: Callable[[Sign], None] = lambda sign: None,
    clock: Clock = capture_age.now,
) -> List[FlushOutcome]:
    """Flush this user's runs (of Slurm job `job`, or all). Returns within about `timeout` seconds plus what it writes.

    `folder`: the node's shared memory, in which the user's directories are. `max_age` in seconds by `clock`: older
    captures are saved, those of other jobs too, and given up where they cannot be, and so are copies of other nodes'
    captures. Slots of dead trainers that hold nothing go, whosever they were. `tell` hears each second how far it is.
    What goes wrong with one run is said of that one, and ends nothing for the others. Raises OSError when shared memory
    cannot be listed.
    """
    end = time.monotonic() + timeout
    out = []
    runs: List[Tuple[str, str, List[shm_slots.SlotName]]] = []
    for place in places.of_mine(folder or ""):
        names = shm_slots.names(place, uid=places.node_uid())
        here = sorted({name.run for name in names})
        runs += [(place, run, [name for name in names if name.run == run]) for run in here]
    with contextlib.closing(FlushProgress(tell)) as progress:
        for place, run, mine in runs:
            with contextlib.suppress(CheckpointError, OSError):
                _announce(place, run, mine, job, progress)
        progress.announced()
        for place, run, mine in runs:
            try:
                outcome = _RunFlush(place, run, job, max_age, clock, progress).flush(mine, end)
            except Exception as err:
                outcome = FlushOutcome(run, None, False, f"{type(err).__name__}: {err}")
            progress.end(run)
            if outcome is not None:
                out.append(outcome)
    for place in places.of_mine(folder or ""):
        out += _copies(place, job, max_age, clock)
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


class _RunFlush:
    """One run's captures in one directory, and what this flush may do with them."""

    def __init__(
        self, folder: str, run: str, job: Optional[str], max_age: float, clock: Clock, progress: FlushProgress
    ) -> None:
        self._folder, self._run, self._job = folder, run, job
        self._max_age, self._clock, self._progress = max_age, clock, progress

    def flush(self, names: List[shm_slots.SlotName], end: float) -> Optional[FlushOutcome]:
        """What became of the run, `end` being when to wait no longer for its agents; None when there is nothing to say
        to whoever asked for a job."""
        slots = _open(self._folder, names)
        ours = _is_of(slots, self._job)
        if not ours and any(self._is_young(one.page) for one in slots):
            return None
        outcome = self._locked(names, ours, end if ours else 0.0)
        if outcome.removed:
            outcome = outcome._replace(note=outcome.note + _sweep(self._folder, self._run))
        return outcome if ours or outcome.removed else None

    def _is_young(self, page: Page) -> bool:
        """Whether somebody may come yet for a capture: it is known to be younger than the limit."""
        age = capture_age.age(page, self._clock()) if page.state in WHOLE else None
        return age is not None and age <= self._max_age

    def _locked(self, names: List[shm_slots.SlotName], ours: bool, end: float) -> FlushOutcome:
        locks: List[lock.Lock] = []
        try:
            for rank in sorted({name.rank for name in names}):
                path = os.path.join(self._folder, shm_slots.lock_file(places.node_uid(), self._run, rank))
                try:
                    taken = lock.try_acquire(path)
                except (Untrusted, NotEnoughSharedMemory):
                    # Another's file is in its place, or there is no room for one: no agent of ours has one either, and
                    # none can come by one. What is to be saved is worth more than a lock against nobody.
                    continue
                signs = lock.HolderSigns(path)
                while taken is None:
                    held = lock.holder(path)
                    if held is not None and process.alive(held[1]):
                        words = f"its trainer (pid {held[1].pid}) is alive"
                        return FlushOutcome(self._run, None, False, words, again=False)
                    if held is not None and held[1] == lock.NOBODY and process.alive(held[0]):
                        words = f"another flush (pid {held[0].pid}) is at work"
                        return FlushOutcome(self._run, None, False, words)
                    still = signs.still_for()
                    if still < AT_WORK:
                        movement.moved()
                    if time.monotonic() > end and still > AT_WORK:
                        return FlushOutcome(self._run, None, False, f"the agent of rank {rank} is still at work")
                    time.sleep(_POLL)
                    taken = lock.try_acquire(path)
                locks.append(taken)
            self._progress.holds(locks)
            for name in names:
                # Only now: a trainer that is making a slot has its image before its control page.
                shm_slots.remove_stray_image(self._folder, name)
            return self._settle(names, ours)
        finally:
            self._progress.holds([])
            for taken in locks:
                taken.release()

    def _settle(self, names: List[shm_slots.SlotName], ours: bool) -> FlushOutcome:
        slots = _open(self._folder, names)
        alive = next((one.page.origin.trainer for one in slots if process.alive(one.page.origin.trainer)), None)
        if alive is not None:
            return FlushOutcome(self._run, None, False, f"its trainer (pid {alive.pid}) is alive", again=False)
        whole = [shm_slots.dated(one, self._clock) for one in slots if one.page.state in WHOLE]
        if not whole:
            return self._remove(names, None, "nothing was captured")
        if not ours and not all(capture_age.outlived(one.page, self._max_age, self._clock()) for one in whole):
            return FlushOutcome(self._run, None, False, "somebody may come for it yet")
        captured: Dict[Key, Dict[int, shm_slots.OpenSlot]] = {}
        for one in whole:
            captured.setdefault(one.page.key, {})[one.page.origin.rank] = one
        age = capture_age.youngest((one.page for one in whole), self._clock())
        attempt: Optional[str] = None
        try:
            saved = flush_captures.save(self._run, captured, [one.page for one in slots], self._progress)
        except (CheckpointError, OSError) as err:
            note = f"not persisted: {verify.reason_of(err)}"
        else:
            attempt, note = saved.attempt, saved.note
            if saved.done:
                return self._remove(names, attempt, note, saved.lost)
        if age is None or age <= self._max_age:
            return FlushOutcome(self._run, attempt, False, note)
        steps = flush_captures.steps_of(one.page for one in whole)
        return self._remove(names, attempt, note, f"{steps}, given up {age / 3600:.1f} hours after it was sealed")

    def _remove(
        self, names: List[shm_slots.SlotName], attempt: Optional[str], note: str, lost: str = ""
    ) -> FlushOutcome:
        damaged = _damaged(self._folder, names)
        lost = "; ".join(filter(None, (lost, damaged)))
        if lost:
            losses_announced.announce(self._run, lost)
        try:
            saves_note.remove(self._folder, places.node_uid(), self._run)
            for name in names:
                shm_slots.remove(self._folder, name)
        except OSError as err:
            return FlushOutcome(self._run, attempt, False, f"{note}; not removed: {err.strerror}")
        return FlushOutcome(self._run, attempt, True, _note(note, lost), lost=lost)


def _damaged(folder: str, names: List[shm_slots.SlotName]) -> str:
    """Of slots that somebody has written, and nobody can read, in words."""
    damaged = []
    for slot in shm_slots.attached(folder, names):
        if slot.page is None and not slot.blank:
            damaged.append(slot.name.file("ctl"))
        slot.close()
    return f"what {', '.join(damaged)} was the page of, which is damaged" if damaged else ""


def _copies(folder: str, job: Optional[str], max_age: float, clock: Clock) -> List[FlushOutcome]:
    """What became of other nodes' captures beside the slots in `folder`."""
    try:
        outcomes = flush_copies.flush(folder, job, max_age, clock)
    except (CheckpointError, OSError) as err:
        return [FlushOutcome("copies of other nodes' captures", None, False, verify.reason_of(err))]
    return [
        FlushOutcome(one.run, None, not one.waiting, _note(one.waiting, one.lost), lost=one.lost) for one in outcomes
    ]


def _note(what: str, lost: str) -> str:
    return "; ".join(filter(None, (what, f"LOST: {lost}" if lost else "")))
