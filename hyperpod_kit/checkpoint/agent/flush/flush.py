"""Bring to storage what dead trainers left in shared memory, then give the memory back.

For the Epilog's unit and for people: runs on system Python, without torch and without an agent. All captures that are
newer than what is committed are saved, the newest first, all ranks of the node at a time. What is not whole on this
node is handed in, and committed by the last node that does so. What cannot be written stays for a restart of the job,
with the reason, until it is too old (see capture_age): then it is given up, and the outcome says what is lost.

Each run's storage is touched in a thread of its own (StorageTurn): one that hangs costs its own run and no other.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import (
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent.flush import flush_captures
from hyperpod_kit.checkpoint.agent.flush.flush_progress import FlushProgress, Sign
from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.shm import capture_age, failure_note, lock, logs, node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.capture_age import MAX_AGE, BootMoment, Clock
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Key, Page
from hyperpod_kit.checkpoint.agent.shm.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, flush_note
from hyperpod_kit.checkpoint.repository.records.flush_note import FlushNote
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
    """Return the exit code of a program that has flushed: 86 when something complete was given up, 1 when
    something stays, else 0."""
    finished = list(outcomes)
    if any(outcome.lost for outcome in finished):
        return ExitCode.GAVE_UP
    if all(outcome.removed for outcome in finished):
        return ExitCode.OK
    return ExitCode.PROBLEM


def flush(
    *,
    folder: Optional[str] = None,
    job: Optional[str] = None,
    timeout: float = 45.0,
    limit: float = math.inf,
    stall: float = STALL,
    max_age: float = MAX_AGE,
    on_progress: Callable[[Sign], None] = lambda sign: None,
    clock: Clock = capture_age.now,
) -> List[FlushOutcome]:
    """Save to storage what dead trainers of this user's runs (of Slurm job `job`, or of all) left in shared
    memory, and free it.

    Returns within about `timeout` seconds plus what it writes, at the latest after `limit` seconds, or
    `stall` seconds in which no byte moved: what is not saved by then stays, and its outcome says so.

    `folder`: the node's shared memory, in which the user's directories are. `max_age` in seconds by
    `clock`: older captures are saved, those of other jobs too, and given up where they cannot be, and so
    are copies of other nodes' captures. Slots of dead trainers that hold nothing are removed, whosever they
    were. `on_progress` is called each second. What goes wrong with one run is in the outcome of that one,
    and ends nothing for the others. Raises OSError when shared memory cannot be listed.
    """
    started_at = time.monotonic()
    waiting = TurnLimit(started_at + limit, stall)
    with contextlib.closing(FlushProgress(on_progress)) as progress:
        request = _FlushRequest(job, max_age, clock, progress, started_at + timeout)
        user_directories = shm_paths.own_directories_and_shm_root(folder or "")
        flushes: List[Union[_RunFlush, _UnannouncedCopiesFlush]] = []
        for list_flushes in _LIST_FLUSHES:
            for user_directory in user_directories:
                flushes += list_flushes(user_directory, request)
        turns = [
            StorageTurn(run_flush.announce, run_flush.flush_and_report, run_flush.withdraw_announcement_if_any)
            for run_flush in flushes
        ]
        run_turns(turns, waiting, progress.set_announced_and_report)
    if waiting.is_stalled:
        reason = f"no progress for {stall:g} s"
    else:
        reason = f"not done after {limit:g} s"
    outcomes = []
    for turn, run_flush in zip(turns, flushes):
        if turn.has_result:
            outcome = turn.result
        else:
            outcome = run_flush.outcome_when_not_finished(reason)
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


def _belongs_to_job(slots: List[shm_slots.OpenSlot], job: Optional[str]) -> bool:
    return job is None or any(str(opened.page.origin.job.get("slurm_job_id")) == job for opened in slots)


def _open_slots(folder: str, names: List[shm_slots.SlotName]) -> List[shm_slots.OpenSlot]:
    opened = []
    for slot in shm_slots.attach_each_mappable(folder, names):
        page = slot.page
        if page is not None:
            opened.append(shm_slots.OpenSlot(slot, page))
    return opened


def _remove_logs_returning_last_lines(folder: str, run: str) -> str:
    """Remove a finished run's agent logs; the last line of each, which says why an agent died."""
    notes = ""
    for entry in sorted(os.listdir(folder)):
        if entry.startswith(f"hpk-{shm_paths.node_uid()}-{run}-") and entry.endswith(".log"):
            last_line = logs.read_last_line_and_remove(os.path.join(folder, entry))
            notes += f"; {entry}: {last_line}" if last_line else ""
    return notes


class _FlushRequest(NamedTuple):
    """What this flush may do. `end`: when to wait no longer for the agents of a run."""

    job: Optional[str]
    max_age: float
    clock: Clock
    progress: FlushProgress
    end: float


class _RunFlush:
    """One run's captures in one directory, and what this flush may do with them."""

    def __init__(self, folder: str, run: str, names: List[shm_slots.SlotName], request: _FlushRequest) -> None:
        self._folder, self._run, self._names = folder, run, names
        self._job, self._max_age, self._clock, self._progress, self._end = request

    @staticmethod
    def list_in(user_directory: str, request: _FlushRequest) -> List[_RunFlush]:
        """Return a flush for each run with slots there. Raises OSError."""
        names = shm_slots.own_slot_names(user_directory, uid=shm_paths.node_uid())
        return [
            _RunFlush(user_directory, run, [name for name in names if name.run == run], request)
            for run in sorted({name.run for name in names})
        ]

    def announce(self) -> None:
        """Write a note to storage that says what will come, before anything is waited for. Errors are ignored."""
        with contextlib.suppress(CheckpointError, OSError):
            self._announce()

    def _announce(self) -> None:
        slots = _open_slots(self._folder, self._names)
        try:
            complete_pages = [page for _, page in slots if page.state in COMPLETE_STATES]
            if (
                not complete_pages
                or not _belongs_to_job(slots, self._job)
                or any(process.is_alive(page.origin.trainer) for page in complete_pages)
            ):
                return
            # A storage that hangs keeps this process, and with it the locks: no later flush hangs there too.
            with self._hold_free_locks_unless_other_flush() as free:
                if free:
                    self._write_flush_note(complete_pages)
        finally:
            for opened in slots:
                opened.slot.close()

    def _write_flush_note(self, complete_pages: List[Page]) -> None:
        store, committed = flush_captures.open_storage_and_find_newest_epoch_seq(complete_pages[0])
        unsaved_pages = [page for page in complete_pages if page.key[:2] > committed]
        if not unsaved_pages:
            return
        newest = max(unsaved_pages, key=lambda page: page.key)
        size = sum(page.shard.size for page in unsaved_pages)
        job_id = str(newest.origin.job.get("slurm_job_id", ""))
        newest_committed = catalog.newest_committed(store) or ""
        note = FlushNote(
            flush_note.node_name(), job_id, newest.epoch, newest.seq, newest.step, size, committed=newest_committed
        )
        self._progress.start_renewing_note(self._run, store, note)

    @contextlib.contextmanager
    def _hold_free_locks_unless_other_flush(self) -> Iterator[bool]:
        """Hold the rank locks that nobody has for as long as the block lasts; yield False when another flush has
        one. Locks of agents are waited for later."""
        locks: List[lock.Lock] = []
        try:
            for _, path in self._ranks_with_lock_paths():
                try:
                    taken = lock.try_acquire(path)
                except (Untrusted, NotEnoughSharedMemory):
                    continue
                if taken is not None:
                    locks.append(taken)
                    continue
                holder = lock.read_agent_and_trainer(path)
                if holder is not None and holder[1] == lock.NOBODY:
                    yield False
                    return
            yield True
        finally:
            for taken in locks:
                taken.release()

    def _ranks_with_lock_paths(self) -> List[Tuple[int, str]]:
        """(rank, the path of its lock) of each rank."""
        ranks = sorted({name.rank for name in self._names})
        uid = shm_paths.node_uid()
        return [(rank, os.path.join(self._folder, shm_slots.lock_file_name(uid, self._run, rank))) for rank in ranks]

    def flush_and_report(self) -> Optional[FlushOutcome]:
        """Flush the run and return what became of it; None when it is not of the requested job and stays as it is.

        An exception becomes an outcome.
        """
        try:
            return self._flush()
        except Exception as err:
            return FlushOutcome(self._run, None, False, f"{type(err).__name__}: {err}")

    def withdraw_announcement_if_any(self) -> None:
        """Remove the note on storage: nothing of the run is on its way any more."""
        self._progress.remove_run_note(self._run)

    def outcome_when_not_finished(self, reason: str) -> Optional[FlushOutcome]:
        """The outcome of a run whose storage did not take it in time."""
        slots = _open_slots(self._folder, self._names)
        try:
            if not _belongs_to_job(slots, self._job):
                return None
            complete_pages = [page for _, page in slots if page.state in COMPLETE_STATES]
            if complete_pages:
                steps = flush_captures.describe_steps(complete_pages)
                reason = f"{reason}: {complete_pages[0].origin.root} has not taken {steps}"
            return FlushOutcome(self._run, None, False, reason)
        finally:
            for opened in slots:
                opened.slot.close()

    def _flush(self) -> Optional[FlushOutcome]:
        slots = _open_slots(self._folder, self._names)
        is_requested = _belongs_to_job(slots, self._job)
        if not is_requested and any(self._is_known_younger_than_max_age(opened.page) for opened in slots):
            return None
        outcome = self._lock_and_flush(is_requested, self._end if is_requested else 0.0)
        if outcome.removed:
            outcome = outcome._replace(note=outcome.note + _remove_logs_returning_last_lines(self._folder, self._run))
        if is_requested or outcome.removed:
            return outcome
        return None

    def _is_known_younger_than_max_age(self, page: Page) -> bool:
        """Whether somebody may come yet for a capture: it is known to be younger than the limit."""
        age = None
        if page.state in COMPLETE_STATES:
            age = capture_age.seconds_since_sealing(page, self._clock())
        return age is not None and age <= self._max_age

    def _lock_and_flush(self, is_requested: bool, end: float) -> FlushOutcome:
        locks: List[lock.Lock] = []
        try:
            for rank, path in self._ranks_with_lock_paths():
                try:
                    taken = self._acquire_lock(rank, path, end)
                except (Untrusted, NotEnoughSharedMemory):
                    # Another's file is in its place, or there is no room for one: no agent of ours has one either, and
                    # none can come by one. What is to be saved is worth more than a lock against nobody.
                    continue
                if isinstance(taken, FlushOutcome):
                    return taken
                locks.append(taken)
            self._progress.set_locks_to_renew(self._run, locks)
            for name in self._names:
                # Only now: a trainer that is making a slot has its image before its control page.
                shm_slots.is_without_control_page_removing_image(self._folder, name)
            return self._save_and_remove(is_requested)
        finally:
            self._progress.set_locks_to_renew(self._run, [])
            for taken in locks:
                taken.release()

    def _acquire_lock(self, rank: int, path: str, end: float) -> Union[lock.Lock, FlushOutcome]:
        """The lock of one rank, or the outcome for want of it. Raises Untrusted, CheckpointError, OSError."""
        signs = lock.HolderSigns(path)
        while True:
            taken = lock.try_acquire(path)
            if taken is not None:
                return taken
            still = signs.seconds_since_sign()
            obstacle = self._outcome_if_waiting_is_futile(path, still)
            if obstacle is not None:
                return obstacle
            if still < AT_WORK:
                io_progress.record_progress()
            elif time.monotonic() > end:
                return FlushOutcome(self._run, None, False, f"the agent of rank {rank} is still working")
            time.sleep(_POLL)

    def _outcome_if_waiting_is_futile(self, path: str, idle_seconds: float) -> Optional[FlushOutcome]:
        """Return the outcome where waiting for the holder of a lock, which has shown no sign for `idle_seconds`,
        is of no use; else None."""
        holder = lock.read_agent_and_trainer(path)
        if holder is None:
            return None
        agent, trainer = holder
        if process.is_alive(trainer):
            return FlushOutcome(self._run, None, False, f"its trainer (pid {trainer.pid}) is alive", again=False)
        if trainer != lock.NOBODY:
            return None
        if process.is_alive(agent):
            return FlushOutcome(self._run, None, False, f"another flush (pid {agent.pid}) is running")
        if idle_seconds < AT_WORK:
            return None
        note = f"an earlier flush (pid {agent.pid}) was ended, and the kernel holds it until its storage answers"
        return FlushOutcome(self._run, None, False, note)

    def _save_and_remove(self, is_requested: bool) -> FlushOutcome:
        names = self._names
        slots = _open_slots(self._folder, names)
        trainers = (opened.page.origin.trainer for opened in slots)
        live_trainer = next((trainer for trainer in trainers if process.is_alive(trainer)), None)
        if live_trainer is not None:
            return FlushOutcome(self._run, None, False, f"its trainer (pid {live_trainer.pid}) is alive", again=False)
        complete_slots = [
            shm_slots.ensure_dated(opened, self._clock) for opened in slots if opened.page.state in COMPLETE_STATES
        ]
        if not complete_slots:
            return self._log_loss_and_remove_slots(names, None, "nothing was captured")
        if not is_requested and not all(
            capture_age.is_known_to_be_expired(opened.page, self._max_age, self._clock()) for opened in complete_slots
        ):
            return FlushOutcome(self._run, None, False, "a restarted job may still use it")
        captured: Dict[Key, Dict[int, shm_slots.OpenSlot]] = {}
        for opened in complete_slots:
            captured.setdefault(opened.page.key, {})[opened.page.origin.rank] = opened
        age = capture_age.youngest_age_if_all_known((opened.page for opened in complete_slots), self._clock())
        checkpoint_id: Optional[str] = None
        try:
            saved = flush_captures.save(self._run, captured, [opened.page for opened in slots], self._progress)
        except (CheckpointError, OSError) as err:
            note = f"not persisted: {verify.describe_failure(err)}"
        else:
            checkpoint_id, note = saved.checkpoint_id, saved.note
            if saved.done:
                return self._log_loss_and_remove_slots(names, checkpoint_id, note, saved.lost)
        if age is None or age <= self._max_age:
            return FlushOutcome(self._run, checkpoint_id, False, note)
        steps = flush_captures.describe_steps(opened.page for opened in complete_slots)
        return self._log_loss_and_remove_slots(
            names, checkpoint_id, note, f"{steps}, given up {age / 3600:.1f} hours after it was sealed"
        )

    def _log_loss_and_remove_slots(
        self, names: List[shm_slots.SlotName], checkpoint_id: Optional[str], note: str, lost: str = ""
    ) -> FlushOutcome:
        damaged = _describe_damaged_slots(self._folder, names)
        lost = "; ".join(filter(None, (lost, damaged)))
        if lost:
            record_loss_in_audit_log(self._run, lost)
        try:
            failure_note.remove(self._folder, shm_paths.node_uid(), self._run)
            for name in names:
                shm_slots.remove(self._folder, name)
        except OSError as err:
            return FlushOutcome(self._run, checkpoint_id, False, f"{note}; not removed: {err.strerror}")
        return FlushOutcome(self._run, checkpoint_id, True, _join_notes(note, lost), lost=lost)


def _describe_damaged_slots(folder: str, names: List[shm_slots.SlotName]) -> str:
    """Of slots that somebody has written, and nobody can read, in words."""
    damaged = []
    for slot in shm_slots.attach_each_mappable(folder, names):
        if slot.page is None and not slot.has_no_page_written_yet:
            damaged.append(slot.name.file("ctl"))
        slot.close()
    if damaged:
        return f"what {', '.join(damaged)} was the page of, which is damaged"
    return ""


class _UnannouncedCopiesFlush:
    """The copies of other nodes' captures of one run that lie beside the slots in `folder`."""

    def __init__(self, folder: str, run: str, request: _FlushRequest) -> None:
        self._folder, self._run, self._request = folder, run, request

    @staticmethod
    def list_in(user_directory: str, request: _FlushRequest) -> List[_UnannouncedCopiesFlush]:
        """Return a flush for each run with copies there. Raises OSError."""
        runs = partner_memory.runs_with_copies(user_directory)
        return [_UnannouncedCopiesFlush(user_directory, run, request) for run in runs]

    def announce(self) -> None:
        """Do nothing: no node waits for copies, since their owner's node brings the captures."""

    def withdraw_announcement_if_any(self) -> None:
        """Do nothing: nothing was announced."""

    def flush_and_report(self) -> Optional[FlushOutcome]:
        """Free the copies that storage has and give up the expired ones; return what became of them, None for
        nothing."""
        try:
            request = self._request
            copies = free_saved_or_expired_copies(self._folder, self._run, request.job, request.max_age, request.clock)
        except Exception as err:
            return FlushOutcome(_COPIES, None, False, verify.describe_failure(err))
        if copies is None:
            return None
        return FlushOutcome(
            copies.run, None, not copies.waiting, _join_notes(copies.waiting, copies.lost), lost=copies.lost
        )

    def outcome_when_not_finished(self, reason: str) -> FlushOutcome:
        """The outcome where their storage did not say in time what it has."""
        return FlushOutcome(self._run, None, False, f"{_COPIES}: {reason}")


_LIST_FLUSHES: Tuple[Callable[[str, _FlushRequest], Sequence[Union[_RunFlush, _UnannouncedCopiesFlush]]], ...]
_LIST_FLUSHES = node_tiers.require_handler_for_each(
    "checkpoint flush", {node_tiers.MEMORY: _RunFlush.list_in, node_tiers.PARTNER: _UnannouncedCopiesFlush.list_in}
)
"""For each tier, from a user's directory to the flushes of its runs."""


def _join_notes(note: str, lost: str) -> str:
    return "; ".join(filter(None, (note, f"LOST: {lost}" if lost else "")))


# What a flush does with copies of other nodes' captures: what storage has by now is freed, the rest waits for it.
#
# A flush brings to storage what its own node's ranks captured, and a copy's owner does the same on its node. A copy
# is the only one left where that node is dead, so it stays until storage has the capture or a newer one. It is given
# up, and the outcome says so, at twice the age of a capture: by then its owner's node has saved that one or given it
# up.

_TWICE = 2


class CopiesOutcome(NamedTuple):
    """Of one run's copies on this node. `waiting`: what stays, `lost`: what was given up; "" for nothing."""

    run: str
    waiting: str
    lost: str


def free_saved_or_expired_copies(
    folder: str, run: str, job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    """Free the copies of a run that storage has by now, and give up expired ones: those of job `job`, of all
    for None, or too old ones.

    Returns None where there is nothing to say, also while an agent of the run is at work. Raises
    CheckpointError, OSError.
    """
    locks = partner_memory.try_lock_all_agents(folder, run)
    if locks is None:
        return None  # an agent is at work: it renews its copies, and frees them
    try:
        return _free_copies_under_locks(folder, run, job, max_age, clock)
    finally:
        for taken in locks:
            taken.release()


def _free_copies_under_locks(
    folder: str, run: str, job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    partner_memory.remove_incomplete_copies(folder, run)
    copies_directory = partner_memory.copies_directory(folder)
    copies: List[OpenSlot] = []
    for slot in shm_slots.attach_each_mappable(copies_directory, partner_memory.copy_slot_names(copies_directory, run)):
        page = slot.page
        if page is not None:
            copies.append(shm_slots.ensure_dated(OpenSlot(slot, page), clock))
    try:
        return _free_saved_and_expired_copies(copies_directory, run, copies, job, max_age, clock)
    finally:
        for copy in copies:
            copy.slot.close()


def _free_saved_and_expired_copies(
    copies_directory: str, run: str, copies: List[OpenSlot], job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    """None when there is nothing to say to whoever asked for `job`."""
    moment = clock()
    candidates = _all_copies_if_of_job_else_expired(copies, job, max_age, moment)
    if not candidates:
        return None
    committed, problem = _newest_committed_epoch_seq_or_reason(candidates[0])
    unsaved = [copy for copy in candidates if committed is None or copy.page.key[:2] > committed]
    given_up = [copy for copy in unsaved if capture_age.is_known_to_be_expired(copy.page, _TWICE * max_age, moment)]
    waiting = [copy for copy in unsaved if copy not in given_up]
    loss = ""
    if given_up:
        loss = f"{_describe_copies(given_up)}, given up after {_TWICE * max_age / 3600:g} hours{problem}"
    if loss:
        record_loss_in_audit_log(run, loss)
    for copy in candidates:
        if copy not in waiting:
            shm_slots.remove(copies_directory, copy.slot.name)
    unfinished = ""
    if waiting:
        unfinished = f"{_describe_copies(waiting)}, not on storage yet{problem}"
    if unfinished or loss:
        return CopiesOutcome(run, unfinished, loss)
    return None


def _all_copies_if_of_job_else_expired(
    copies: List[OpenSlot], job: Optional[str], max_age: float, moment: BootMoment
) -> List[OpenSlot]:
    """All of the run where a copy is of `job`, or none is named; else those that are too old."""
    is_of_job = job is None or any(str(copy.page.origin.job.get("slurm_job_id")) == job for copy in copies)
    return [copy for copy in copies if is_of_job or capture_age.is_known_to_be_expired(copy.page, max_age, moment)]


def _newest_committed_epoch_seq_or_reason(copy: OpenSlot) -> Tuple[Optional[Tuple[int, int]], str]:
    """((epoch, seq) of the newest commit, None where nobody can say; and then why, in words that go on a sentence)."""
    try:
        return flush_captures.open_storage_and_find_newest_epoch_seq(copy.page)[1], ""
    except (CheckpointError, OSError) as err:
        return None, f": {verify.describe_failure(err)}"


def _describe_copies(copies: List[OpenSlot]) -> str:
    ranks = ", ".join(map(str, sorted({copy.page.origin.rank for copy in copies})))
    steps = flush_captures.describe_steps(copy.page for copy in copies)
    return f"copies of what rank {ranks} captured on another node, {steps}"


# What a flush gives up is in the journal before it goes: a flush that is killed in the middle has said what is lost.


def record_loss_in_audit_log(run: str, lost: str) -> None:
    """Record that these captures of a run are given up. To be called before the first of them is removed."""
    audit.record_root_action_in_journal(
        "gave up", f"captures of run {run}", f"LOST: {lost}", asked_by="checkpoint flush", owner=f"uid {os.getuid()}"
    )


# Work on several storages, each in a thread of its own, one after the other: one that hangs holds up no other.
#
# A thread that the kernel holds on a dead mount cannot be ended. It is left behind: it goes on when its storage does,
# and ends with the process.

STILL = 10.0
"""Seconds without a byte moved after which the next one has its turn."""

_PROGRESS_POLL = 0.5
"""Seconds between two looks at whether something moves."""

T = TypeVar("T")


class StorageTurn(Generic[T]):
    """Work on one storage. `announce` is done at once, `work` when its turn comes. Neither raises anything."""

    def __init__(self, announce: Callable[[], None], work: Callable[[], T], finish: Callable[[], None]) -> None:
        """`finish`: after `work`, whose result counts by then."""
        self._announce, self._work, self._finish = announce, work, finish
        self._has_turn = threading.Event()
        self.announced, self.ended = threading.Event(), threading.Event()
        self.result: Optional[T] = None
        self.has_result = False

    def start_thread(self) -> None:
        """Start a thread that announces, and then waits for its turn."""
        threading.Thread(target=self._run, daemon=True, name="turn").start()

    def give_turn(self) -> None:
        """Let the work begin."""
        if not self._has_turn.is_set():
            io_progress.record_progress()  # time before it is no standstill
        self._has_turn.set()

    def _run(self) -> None:
        try:
            self._announce()
            self.announced.set()
            self._has_turn.wait()
            self.result = self._work()
            self.has_result = True
            self._finish()
        finally:
            self.announced.set()
            self.ended.set()


class TurnLimit:
    """Until when turns are waited for: `end` of the monotonic clock, or `stall` seconds without a byte moved."""

    def __init__(self, end: float, stall: float) -> None:
        self._end, self._stall = end, stall

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for so long."""
        return io_progress.seconds_since_progress() >= self._stall

    def is_reached(self) -> bool:
        """Whether nobody waits any longer."""
        return time.monotonic() >= self._end or self.is_stalled

    def wait_while_progressing(self, event: threading.Event, max_idle_seconds: float) -> None:
        """Wait for an event, until nothing has moved for `max_idle_seconds` or the limit is reached."""
        while not event.wait(_PROGRESS_POLL):
            if self.is_reached() or io_progress.seconds_since_progress() >= max_idle_seconds:
                return


def run_turns(turns: Sequence[StorageTurn[T]], limit: TurnLimit, on_all_announced: Callable[[], None]) -> None:
    """Start all turns, wait until each has announced, then give each its turn; return when all have ended, or
    the limit is reached.

    `on_all_announced` is called when all that can be announced is.
    """
    io_progress.record_progress()
    for turn in turns:
        turn.start_thread()
    for turn in turns:
        limit.wait_while_progressing(turn.announced, STILL)
    on_all_announced()
    ready = [turn for turn in turns if turn.announced.is_set()]
    for turn in ready:
        turn.give_turn()
        limit.wait_while_progressing(turn.ended, STILL)
    for turn in turns:
        turn.give_turn()
    for turn in turns:
        limit.wait_while_progressing(turn.ended, math.inf)
