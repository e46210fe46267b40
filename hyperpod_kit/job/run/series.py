"""What a running job says of itself to the node's metrics: kept from what `job run` reports, and gone with it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence

from hyperpod_kit.checkpoint.agent import job_note, shm_paths
from hyperpod_kit.checkpoint.agent.job_note import JobNote, LockedNote, TimeNote
from hyperpod_kit.errors import JobError
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.goodput import job_time
from hyperpod_kit.job.goodput.counted_seconds import CountedSeconds
from hyperpod_kit.job.goodput.followed_root import FollowedRoot
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState
from hyperpod_kit.job.goodput.time_table import TimeTable, table_of
from hyperpod_kit.job.records import ledger, life
from hyperpod_kit.job.status import timeline

EVERY = 60.0
"""Seconds between two counts of a job's time."""

_STOP = 2.0
"""Seconds that a job waits, at its end and at an event, for the count that is under way."""

_ROWS = ("attempt", "restored", "ended")
"""Events that are reported with the fields of their rows in the ledger."""


class JobSeries:
    """Told of each event of one run of a batch script. `state`: the directory of the ledger, which knows the runs
    before. Best effort: no job fails for its metrics."""

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
        """Of the job so far; None where nobody knows any of it."""
        table = self._time.table(now, wait=_STOP) if self._time is not None else TimeTable()
        return round(table.goodput, 4) if table.goodput is not None else None

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
        self._counter = TimeCounter(self._time, job, time_note, self._clock)


class FollowedTime:
    """What the time of a job that runs went into so far, for several threads."""

    def __init__(self, state: str, job: str) -> None:
        self._root, self._job = FollowedRoot(state), job
        self._lock = threading.Lock()
        self._table = TimeTable()

    def table(self, now: float, wait: float = -1) -> TimeTable:
        """Up to `now`; the last one that is known, where another thread has been reading for `wait` seconds. Raises
        OSError."""
        if not self._lock.acquire(timeout=wait):
            return self._table
        try:
            standing = JobStanding(JobState.RUNS)
            self._table = table_of(job_time.account(self._root.runs(), self._job, now, standing).pieces)
            return self._table
        finally:
            self._lock.release()


class TimeCounter:
    """Keeps the note of what a job's time went into, on a thread of its own, since it reads the records of the root."""

    def __init__(self, time: FollowedTime, job: str, time_note: LockedNote, clock: Callable[[], float]) -> None:
        self._time, self._job, self._time_note, self._clock = time, job, time_note, clock
        self._counted: Optional[CountedSeconds] = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hpk-time-note")
        self._thread.start()

    def stop(self) -> None:
        """The note goes with it."""
        self._over.set()
        self._thread.join(_STOP)
        self._time_note.remove_file_and_unlock()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                table = self._time.table(self._clock())
                self._counted = self._counted or CountedSeconds(table)
                self._time_note.put(TimeNote(self._job, self._counted.raise_counters_to(table)))
            if self._over.wait(EVERY):
                return


def note_of(job: str, rows: Sequence[ledger.Row], now: float, goodput: Optional[float]) -> JobNote:
    """What is said of a job with these rows in its ledger. `now`: Unix seconds."""
    attempts = timeline.fill_in_lost_steps_and_gaps(timeline.of_rows(rows))
    sums = timeline.totals(attempts, now)
    ran = [attempt for attempt in attempts if attempt.kind != timeline.NONE]
    runs = ran[-1] if ran and ran[-1].kind == timeline.UNFINISHED else None
    # Whoever may write to the root may have written classes there that are none.
    ends = {kind.value: sums.kinds[kind.value] for kind in OutcomeKind if kind.value in sums.kinds}
    return JobNote(job, sums.attempts, runs.started if runs else None, sums.lost, goodput, ends)
