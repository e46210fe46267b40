"""Bring to storage what dead trainers left in shared memory, then give the memory back.

For the Epilog's unit and for people: runs on system Python, without torch and without an agent. All captures that are
newer than what is committed are saved, the newest first, all ranks of the node at a time. What is not whole on this
node is handed in, and committed by the last node that does so. What cannot be written stays for a restart of the job,
with the reason, until it is too old (see capture_age): then it is given up, and the outcome says what is lost.

Each run's storage is touched in a thread of its own (turns.py): one that hangs costs its own run and no other.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from hyperpod_kit.checkpoint.agent import (
    capture_age,
    flush_captures,
    flush_copies,
    lock,
    logs,
    losses_announced,
    movement,
    partner_memory,
    places,
    saves_note,
    shm_slots,
)
from hyperpod_kit.checkpoint.agent.capture_age import MAX_AGE, Clock
from hyperpod_kit.checkpoint.agent.control_page import WHOLE, Key, Page
from hyperpod_kit.checkpoint.agent.flush_progress import FlushProgress, Sign
from hyperpod_kit.checkpoint.agent.turns import StorageTurn, TurnLimit, take
from hyperpod_kit.checkpoint.repository import catalog, flush_note, verify
from hyperpod_kit.checkpoint.repository.flush_note import FlushNote
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory, Untrusted
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.system import process

_POLL = 0.1

AT_WORK = 10.0
"""Seconds for which an agent is waited for after each sign that it gets on, however long it takes."""

STALL = 120.0
"""Seconds in which no byte moves, after which a flush ends: the storage that it still waits for hangs."""

_COPIES = "copies of other nodes' captures"


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
    if any(outcome.lost for outcome in seen):
        return ExitCode.GAVE_UP
    return ExitCode.OK if all(outcome.removed for outcome in seen) else ExitCode.PROBLEM


def flush(
    *,
    folder: Optional[str] = None,
    job: Optional[str] = None,
    timeout: float = 45.0,
    limit: float = math.inf,
    stall: float = STALL,
    max_age: float = MAX_AGE,
    tell: Callable[[Sign], None] = lambda sign: None,
    clock: Clock = capture_age.now,
) -> List[FlushOutcome]:
    """Flush this user's runs (of Slurm job `job`, or all). Returns within about `timeout` seconds plus what it writes,
    at the latest after `limit` seconds, or `stall` seconds in which no byte moved: what is not saved by then stays, and
    its outcome says so.

    `folder`: the node's shared memory, in which the user's directories are. `max_age` in seconds by `clock`: older
    captures are saved, those of other jobs too, and given up where they cannot be, and so are copies of other nodes'
    captures. Slots of dead trainers that hold nothing go, whosever they were. `tell` hears each second how far it is.
    What goes wrong with one run is said of that one, and ends nothing for the others. Raises OSError when shared memory
    cannot be listed.
    """
    begun = time.monotonic()
    waiting = TurnLimit(begun + limit, stall)
    flushes: List[Union[_RunFlush, _CopiesFlush]] = []
    with contextlib.closing(FlushProgress(tell)) as progress:
        for place in places.of_mine(folder or ""):
            names = shm_slots.names(place, uid=places.node_uid())
            for run in sorted({name.run for name in names}):
                slots_of_run = [name for name in names if name.run == run]
                flushes.append(_RunFlush(place, run, slots_of_run, job, max_age, clock, progress, begun + timeout))
        for place in places.of_mine(folder or ""):
            flushes += [_CopiesFlush(place, run, job, max_age, clock) for run in partner_memory.runs(place)]
        turns = [StorageTurn(run_flush.announce, run_flush.outcome, run_flush.finish) for run_flush in flushes]
        take(turns, waiting, progress.announced)
    reason = f"nothing has moved for {stall:g} s" if waiting.stalls else f"not done after {limit:g} s"
    outcomes = []
    for turn, run_flush in zip(turns, flushes):
        outcome = turn.result if turn.has_result else run_flush.unsaved(reason)
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


def _is_of(slots: List[shm_slots.OpenSlot], job: Optional[str]) -> bool:
    return job is None or any(str(opened.page.origin.job.get("slurm_job_id")) == job for opened in slots)


def _open(folder: str, names: List[shm_slots.SlotName]) -> List[shm_slots.OpenSlot]:
    opened = []
    for slot in shm_slots.attached(folder, names):
        page = slot.page
        if page is not None:
            opened.append(shm_slots.OpenSlot(slot, page))
    return opened


def _sweep(folder: str, run: str) -> str:
    """Remove a finished run's agent logs; the last line of each, which says why an agent died."""
    notes = ""
    for entry in sorted(os.listdir(folder)):
        if entry.startswith(f"hpk-{places.node_uid()}-{run}-") and entry.endswith(".log"):
            words = logs.last_words(os.path.join(folder, entry))
            notes += f"; {entry}: {words}" if words else ""
    return notes


class _RunFlush:
    """One run's captures in one directory, and what this flush may do with them. `end`: when to wait no longer for the
    run's agents."""

    def __init__(
        self,
        folder: str,
        run: str,
        names: List[shm_slots.SlotName],
        job: Optional[str],
        max_age: float,
        clock: Clock,
        progress: FlushProgress,
        end: float,
    ) -> None:
        self._folder, self._run, self._names, self._job = folder, run, names, job
        self._max_age, self._clock, self._progress, self._end = max_age, clock, progress, end

    def announce(self) -> None:
        """Note on storage what will come, before anything is waited for."""
        with contextlib.suppress(CheckpointError, OSError):
            self._announce()

    def _announce(self) -> None:
        slots = _open(self._folder, self._names)
        try:
            whole = [page for _, page in slots if page.state in WHOLE]
            if (
                not whole
                or not _is_of(slots, self._job)
                or any(process.is_alive(page.origin.trainer) for page in whole)
            ):
                return
            # A storage that hangs keeps this process, and with it the locks: no later flush hangs there too.
            with self._locks_at_hand() as free:
                if free:
                    self._note_what_comes(whole)
        finally:
            for opened in slots:
                opened.slot.close()

    def _note_what_comes(self, whole: List[Page]) -> None:
        store, committed = flush_captures.storage_of(whole[0])
        coming = [page for page in whole if page.key[:2] > committed]
        if not coming:
            return
        newest = max(coming, key=lambda page: page.key)
        size = sum(page.shard.size for page in coming)
        job_id = str(newest.origin.job.get("slurm_job_id", ""))
        there = catalog.newest_committed(store) or ""
        note = FlushNote(flush_note.here(), job_id, newest.epoch, newest.seq, newest.step, size, committed=there)
        self._progress.begin(self._run, store, note)

    @contextlib.contextmanager
    def _locks_at_hand(self) -> Iterator[bool]:
        """Hold the locks that nobody has; whether no other flush has one. Those of agents are waited for later."""
        locks: List[lock.Lock] = []
        try:
            for _, path in self._lock_paths():
                try:
                    taken = lock.try_acquire(path)
                except (Untrusted, NotEnoughSharedMemory):
                    continue
                if taken is not None:
                    locks.append(taken)
                    continue
                holder = lock.holder(path)
                if holder is not None and holder[1] == lock.NOBODY:
                    yield False
                    return
            yield True
        finally:
            for taken in locks:
                taken.release()

    def _lock_paths(self) -> List[Tuple[int, str]]:
        """(rank, the path of its lock) of each rank."""
        ranks = sorted({name.rank for name in self._names})
        uid = places.node_uid()
        return [(rank, os.path.join(self._folder, shm_slots.lock_file(uid, self._run, rank))) for rank in ranks]

    def outcome(self) -> Optional[FlushOutcome]:
        """What became of the run; None when there is nothing to say to whoever asked for a job."""
        try:
            return self._flush()
        except Exception as err:
            return FlushOutcome(self._run, None, False, f"{type(err).__name__}: {err}")

    def finish(self) -> None:
        """Nothing of the run is on its way any more."""
        self._progress.end(self._run)

    def unsaved(self, reason: str) -> Optional[FlushOutcome]:
        """The outcome of a run whose storage did not take it in time."""
        slots = _open(self._folder, self._names)
        try:
            if not _is_of(slots, self._job):
                return None
            whole = [page for _, page in slots if page.state in WHOLE]
            if whole:
                reason = f"{reason}: {whole[0].origin.root} has not taken {flush_captures.steps_of(whole)}"
            return FlushOutcome(self._run, None, False, reason)
        finally:
            for opened in slots:
                opened.slot.close()

    def _flush(self) -> Optional[FlushOutcome]:
        slots = _open(self._folder, self._names)
        ours = _is_of(slots, self._job)
        if not ours and any(self._is_young(opened.page) for opened in slots):
            return None
        outcome = self._locked(ours, self._end if ours else 0.0)
        if outcome.removed:
            outcome = outcome._replace(note=outcome.note + _sweep(self._folder, self._run))
        return outcome if ours or outcome.removed else None

    def _is_young(self, page: Page) -> bool:
        """Whether somebody may come yet for a capture: it is known to be younger than the limit."""
        age = capture_age.age(page, self._clock()) if page.state in WHOLE else None
        return age is not None and age <= self._max_age

    def _locked(self, ours: bool, end: float) -> FlushOutcome:
        locks: List[lock.Lock] = []
        try:
            for rank, path in self._lock_paths():
                try:
                    taken = self._acquired(rank, path, end)
                except (Untrusted, NotEnoughSharedMemory):
                    # Another's file is in its place, or there is no room for one: no agent of ours has one either, and
                    # none can come by one. What is to be saved is worth more than a lock against nobody.
                    continue
                if isinstance(taken, FlushOutcome):
                    return taken
                locks.append(taken)
            self._progress.holds(self._run, locks)
            for name in self._names:
                # Only now: a trainer that is making a slot has its image before its control page.
                shm_slots.remove_stray_image(self._folder, name)
            return self._settle(ours)
        finally:
            self._progress.holds(self._run, [])
            for taken in locks:
                taken.release()

    def _acquired(self, rank: int, path: str, end: float) -> Union[lock.Lock, FlushOutcome]:
        """The lock of one rank, or the outcome for want of it. Raises Untrusted, CheckpointError, OSError."""
        signs = lock.HolderSigns(path)
        while True:
            taken = lock.try_acquire(path)
            if taken is not None:
                return taken
            still = signs.still_for()
            obstacle = self._obstacle(path, still)
            if obstacle is not None:
                return obstacle
            if still < AT_WORK:
                movement.moved()
            elif time.monotonic() > end:
                return FlushOutcome(self._run, None, False, f"the agent of rank {rank} is still at work")
            time.sleep(_POLL)

    def _obstacle(self, path: str, still: float) -> Optional[FlushOutcome]:
        """The outcome where waiting for a lock's holder, which has been `still` for so long, is of no use."""
        holder = lock.holder(path)
        if holder is None:
            return None
        agent, trainer = holder
        if process.is_alive(trainer):
            return FlushOutcome(self._run, None, False, f"its trainer (pid {trainer.pid}) is alive", again=False)
        if trainer != lock.NOBODY:
            return None
        if process.is_alive(agent):
            return FlushOutcome(self._run, None, False, f"another flush (pid {agent.pid}) is at work")
        if still < AT_WORK:
            return None
        words = f"an earlier flush (pid {agent.pid}) was ended, and the kernel holds it until its storage answers"
        return FlushOutcome(self._run, None, False, words)

    def _settle(self, ours: bool) -> FlushOutcome:
        names = self._names
        slots = _open(self._folder, names)
        trainers = (opened.page.origin.trainer for opened in slots)
        alive = next((trainer for trainer in trainers if process.is_alive(trainer)), None)
        if alive is not None:
            return FlushOutcome(self._run, None, False, f"its trainer (pid {alive.pid}) is alive", again=False)
        whole = [shm_slots.dated(opened, self._clock) for opened in slots if opened.page.state in WHOLE]
        if not whole:
            return self._remove(names, None, "nothing was captured")
        if not ours and not all(capture_age.outlived(opened.page, self._max_age, self._clock()) for opened in whole):
            return FlushOutcome(self._run, None, False, "somebody may come for it yet")
        captured: Dict[Key, Dict[int, shm_slots.OpenSlot]] = {}
        for opened in whole:
            captured.setdefault(opened.page.key, {})[opened.page.origin.rank] = opened
        age = capture_age.youngest((opened.page for opened in whole), self._clock())
        attempt: Optional[str] = None
        try:
            saved = flush_captures.save(self._run, captured, [opened.page for opened in slots], self._progress)
        except (CheckpointError, OSError) as err:
            note = f"not persisted: {verify.reason_of(err)}"
        else:
            attempt, note = saved.attempt, saved.note
            if saved.done:
                return self._remove(names, attempt, note, saved.lost)
        if age is None or age <= self._max_age:
            return FlushOutcome(self._run, attempt, False, note)
        steps = flush_captures.steps_of(opened.page for opened in whole)
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


class _CopiesFlush:
    """The copies of other nodes' captures of one run that lie beside the slots in `folder`."""

    def __init__(self, folder: str, run: str, job: Optional[str], max_age: float, clock: Clock) -> None:
        self._folder, self._run, self._job, self._max_age, self._clock = folder, run, job, max_age, clock

    def announce(self) -> None:
        """Nobody waits for copies: their owner's node brings the captures."""

    def finish(self) -> None:
        """Nothing was announced."""

    def outcome(self) -> Optional[FlushOutcome]:
        """What became of them; None when there is nothing to say."""
        try:
            copies = flush_copies.flush(self._folder, self._run, self._job, self._max_age, self._clock)
        except Exception as err:
            return FlushOutcome(_COPIES, None, False, verify.reason_of(err))
        if copies is None:
            return None
        return FlushOutcome(copies.run, None, not copies.waiting, _note(copies.waiting, copies.lost), lost=copies.lost)

    def unsaved(self, reason: str) -> FlushOutcome:
        """The outcome where their storage did not say in time what it has."""
        return FlushOutcome(self._run, None, False, f"{_COPIES}: {reason}")


def _note(what: str, lost: str) -> str:
    return "; ".join(filter(None, (what, f"LOST: {lost}" if lost else "")))
