"""How far a flush is: told to who waits for it here, in the locks' age, and in notes on storage.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Callable, Dict, List, NamedTuple, Tuple

from hyperpod_kit.checkpoint.agent.persist import io_progress, persist
from hyperpod_kit.checkpoint.agent.shm.lock import Lock
from hyperpod_kit.checkpoint.repository.records import flush_note
from hyperpod_kit.checkpoint.repository.records.flush_note import FlushNote
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.bounded_thread import CallUnanswered, result_within, start_in_thread

INTERVAL = 1.0
"""Seconds between two signs."""

STILL = 10.0
"""Seconds without a byte moved after which a flush does not call itself at work."""

_LAST = 2.0
"""Seconds for the notes that are still there at the end: their storage may hang."""


class Sign(NamedTuple):
    """`announced`: what is on its way is noted on storage, or cannot be. Bytes; seconds since one was moved."""

    announced: bool
    moved: int
    total: int
    still: float


class FlushProgress:
    """Of all runs that one flush works at. A thread tells it every second, one for each run renews its note, which may
    hang."""

    def __init__(self, on_progress: Callable[[Sign], None]) -> None:
        self._on_progress = on_progress
        self._notes: Dict[str, Tuple[Store, str, FlushNote]] = {}
        self._locks: Dict[str, List[Lock]] = {}
        self._lock = threading.Lock()
        self._moved: Dict[str, int] = {}
        self._moved_at: Dict[str, float] = {}
        self._announced = False
        self._closed = threading.Event()
        threading.Thread(target=self._report_loop, daemon=True, name="flush-progress").start()

    def start_renewing_note(self, run: str, store: Store, note: FlushNote) -> None:
        """Write the note that this run's captures are on their way, and start a thread that renews it.

        Where no note can be written no other node waits for it.
        """
        name = flush_note.new_note_path()
        with self._lock:
            self._moved[run] = 0
        with contextlib.suppress(CheckpointError, OSError):
            flush_note.write(store, name, note)
            with self._lock:
                self._notes[run] = (store, name, note)
            threading.Thread(target=self._renew_note_loop, args=(run,), daemon=True, name="flush-note").start()

    def set_next_capture(self, run: str, epoch: int, seq: int, step: int) -> None:
        """Name in the run's note the capture that is next: what is newer is on storage, or never will be."""
        with self._lock:
            if run in self._notes:
                store, name, note = self._notes[run]
                self._notes[run] = (store, name, replace(note, epoch=epoch, seq=seq, step=step))

    def remove_run_note(self, run: str) -> None:
        """Remove the run's note from storage: nothing of it is on its way any more."""
        with self._lock:
            ended = self._notes.pop(run, None)
        if ended is not None:
            flush_note.try_remove(ended[0], ended[1])

    def set_announced_and_report(self) -> None:
        """Record that all that can be known of what is to come is noted on storage, and report the progress."""
        self._announced = True
        self._renew_locks_and_report()

    def set_locks_to_renew(self, run: str, locks: List[Lock]) -> None:
        """Set the locks of this run, which are renewed while its bytes move, for those that wait for them."""
        with self._lock:
            self._locks[run] = locks
            self._moved_at[run] = time.monotonic()

    def write_options_counting_bytes(self, run: str) -> persist.WriteOptions:
        """Return options for a write whose bytes are counted as this run's progress."""
        return persist.WriteOptions(pace=_UnlimitedCountingPace(lambda count: self._add_moved_bytes(run, count)))

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(CallUnanswered):
            result_within(start_in_thread(self._remove_all_notes, "flush-notes-end"), _LAST)

    def _remove_all_notes(self) -> None:
        with self._lock:
            runs = list(self._notes)
        for run in runs:
            self.remove_run_note(run)

    def _add_moved_bytes(self, run: str, count: int) -> None:
        with self._lock:
            self._moved[run] = self._moved.get(run, 0) + count
            self._moved_at[run] = time.monotonic()

    def _report_loop(self) -> None:
        while not self._closed.wait(INTERVAL):
            self._renew_locks_and_report()

    def _renew_locks_and_report(self) -> None:
        now = time.monotonic()
        with self._lock:
            for run, locks in self._locks.items():
                if now - self._moved_at[run] < STILL:
                    for lock in locks:
                        lock.touch_lock_file()
            total = sum(note.bytes for _, _, note in self._notes.values())
            moved = sum(self._moved.values())
        self._on_progress(Sign(self._announced, moved, total, io_progress.seconds_since_progress()))

    def _renew_note_loop(self, run: str) -> None:
        while not self._closed.wait(INTERVAL):
            with self._lock:
                if run not in self._notes:
                    return
                store, name, note = self._notes[run]
                note = replace(note, beat=note.beat + 1, moved=self._moved.get(run, 0))
                self._notes[run] = (store, name, note)
            with contextlib.suppress(CheckpointError, OSError):
                flush_note.write(store, name, note)
            # It may have ended meanwhile, before what was written just now.
            with self._lock:
                is_ended = run not in self._notes
            if is_ended:
                flush_note.try_remove(store, name)


class _UnlimitedCountingPace(persist.Pace):
    """No limit: nobody trains."""

    def __init__(self, count: Callable[[int], None]) -> None:
        super().__init__()
        self._count = count

    def wait_for_bytes(self, count: int) -> None:
        self._count(count)
