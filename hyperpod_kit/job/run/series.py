"""Give the metrics of the node what `job run` reports of its job; the notes are removed when it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence

from hyperpod_kit.checkpoint.agent.shm import job_note, shm_paths
from hyperpod_kit.checkpoint.agent.shm.job_note import JobNote, JobStepNote, LockedNote, TimeNote
from hyperpod_kit.errors import JobError
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.goodput import job_time, launch_time, time_rows
from hyperpod_kit.job.goodput.counted_seconds import CountedSeconds
from hyperpod_kit.job.goodput.followed_root import FollowedRoot
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState, JobTime
from hyperpod_kit.job.goodput.time_table import table_of
from hyperpod_kit.job.records import ledger, life
from hyperpod_kit.job.status import timeline

EVERY = 60.0
"""Seconds between two counts of a job's time."""

_STOP = 2.0
"""Seconds to wait for a count that is under way, at an event and at the end of the job."""

_ROWS = ("attempt", "restored", "ended")
"""Events that are reported with the fields of their rows in the ledger."""


class JobSeries:
    """Keep a note of the job for the node's metrics, from each event of one run of a batch script.

    `state` is the directory of the ledger, which has the runs before this one. Errors are ignored: no job fails for its
    metrics.
    """

    def __init__(self, state: str, env: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._env = env
        self._clock = clock
        self._rows: List[ledger.Row] = []
        self._base: ledger.Row = {}
        self._locked_note: Optional[LockedNote] = None
        self._time: Optional[FollowedTime] = None
        self._counter: Optional[TimeCounter] = None

    def __enter__(self) -> JobSeries:
        return self

    def __exit__(self, *error: object) -> None:
        if self._counter is not None:
            self._counter.stop()
            self._counter = None
        if self._locked_note is not None:
            self._locked_note.remove_file_and_unlock()
            self._locked_note = None

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError, JobError):
            if event == "start" and self._locked_note is None:
                self._open_notes_and_start_counter(fields)
            elif event in _ROWS:
                self._rows.append({**self._base, "t": self._clock(), "event": event, **fields})
            else:
                return
            if self._locked_note is not None:
                now = self._clock()
                self._locked_note.put(note_of(self._base["job"], self._rows, now, self._goodput(now)))

    def _goodput(self, now: float) -> Optional[float]:
        """Return the goodput of the job so far, None where it is not known."""
        if self._time is None:
            return None
        table = table_of(self._time.account(now, wait=_STOP).pieces)
        if table.goodput is None:
            return None
        return round(table.goodput, 4)

    def _open_notes_and_start_counter(self, fields: Mapping[str, Any]) -> None:
        job, restart = fields["job"], fields["restart"]
        job_ledger = ledger.Ledger(self._state, job, restart, born=life.id_of_batch_script_run(self._env))
        self._base = {"job": job, "restart": restart}
        self._rows = job_ledger.valid_rows_of_this_job()
        folder, uid = shm_paths.ensure_user_directory(), shm_paths.node_uid()
        job_note.remove_stale(folder, uid)
        self._locked_note = LockedNote(folder, uid, fields["number"])
        self._time = FollowedTime(self._state, job)
        time_note = LockedNote(folder, uid, fields["number"], "time")
        step_note = LockedNote(folder, uid, fields["number"], "step")
        self._counter = TimeCounter(self._time, job, time_note, step_note, self._clock)


class FollowedTime:
    """Accounts of what the time of a running job went into so far, for several threads."""

    def __init__(self, state: str, job: str) -> None:
        self._root, self._job = FollowedRoot(state), job
        self._lock = threading.Lock()
        self._account = JobTime(job)

    def account(self, now: float, wait: float = -1) -> JobTime:
        """Return the account up to `now`. Raises OSError.

        Where another thread has been reading for `wait` seconds, it is the last account that was taken.
        """
        if not self._lock.acquire(timeout=wait):
            return self._account
        try:
            standing = JobStanding(JobState.RUNS)
            self._account = job_time.account(self._root.runs(), self._job, now, standing)
            return self._account
        finally:
            self._lock.release()


class TimeCounter:
    """Keep the notes of what a job's time went into and of its step, on a thread of its own, since it reads the records
    of the root."""

    def __init__(
        self, time: FollowedTime, job: str, time_note: LockedNote, step_note: LockedNote, clock: Callable[[], float]
    ) -> None:
        self._time, self._job, self._clock = time, job, clock
        self._time_note, self._step_note = time_note, step_note
        self._counted: Optional[CountedSeconds] = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hpk-time-note")
        self._thread.start()

    def stop(self) -> None:
        """Stop counting and remove the notes."""
        self._over.set()
        self._thread.join(_STOP)
        self._time_note.remove_file_and_unlock()
        self._step_note.remove_file_and_unlock()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                account = self._time.account(self._clock())
                table = table_of(account.pieces)
                self._counted = self._counted or CountedSeconds(table)
                self._time_note.put(TimeNote(self._job, self._counted.raise_counters_to(table)))
                self._put_step(account)
            if self._over.wait(EVERY):
                return

    def _put_step(self, account: JobTime) -> None:
        """Write the step of the attempt that runs; nothing where none runs, or it has completed no step."""
        row = account.current
        if row is None or row.step is None:
            self._step_note.clear()
            return
        moved = row.t - row.seconds[time_rows.OPEN_STEP]
        self._step_note.put(JobStepNote(self._job, row.step, moved, launch_time.usual_step(row)))


def note_of(job: str, rows: Sequence[ledger.Row], now: float, goodput: Optional[float]) -> JobNote:
    """Return the note of a job with these rows in its ledger. `now` is in Unix seconds."""
    attempts = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(rows))
    sums = timeline.totals(attempts, now)
    ran = [attempt for attempt in attempts if attempt.kind != timeline.NONE]
    running_since: Optional[float] = None
    if ran and ran[-1].kind == timeline.UNFINISHED:
        running_since = ran[-1].started
    # Whoever may write to the root may have written classes there that are none.
    ends = {kind.value: sums.kinds[kind.value] for kind in OutcomeKind if kind.value in sums.kinds}
    return JobNote(job, sums.attempts, running_since, sums.lost, goodput, ends)
