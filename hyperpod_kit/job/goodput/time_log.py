"""The thread of rank 0's wrapper that appends the rows of time_rows.py.

It is a thread of its own, so that no rank waits for a file system that hangs; what could not be written then is in the
next row, since every row counts from the beginning of the process.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable, Dict, Optional, Protocol

from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.goodput.time_rows import MemoryCapture, TimeRow
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import COUNTED, ClockReading, PhaseClock
from hyperpod_kit.slurm.progress import RankState
from hyperpod_kit.untrusted import by_descriptor

CHECK_INTERVAL = 0.5
"""Seconds between two reads of the rank's progress."""

EVERY, EARLY, PART = 60.0, 1.0, 0.01
"""Seconds between two rows: at most, at least, and as a part of the process's age; a young one has exact rows."""

_END = 2.0
"""Seconds that the end of a rank waits for its last row."""

_STAGES = {Phase.SAVE: Phase.STEP, Phase.EVALUATION: Phase.STEP}
"""Phases that alternate with steps, and the phase that they count as: their beginning is no reason for a row."""


def append(path: str, line: bytes) -> None:
    """Append a row and flush it to disk; a torn line before it is ended first. Raises OSError."""
    path = by_descriptor.resolve_parent(path)
    by_descriptor.make_parents(path)
    descriptor = by_descriptor.open_own_or_root_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"
        if torn:
            line = b"\n" + line
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RankMemory(Protocol):
    """The progress that a rank has written to memory, as RankProgress reads it."""

    def read_phase_clock(self) -> Optional[ClockReading]:
        """Return the reading of its phase clock; None where it has written none."""

    def state(self) -> RankState:
        """Return its step and its phase."""


class RankTime:
    """Makes rows from the progress that rank 0 has written.

    For a program without a phase clock, such as a shell script that writes its step, the state is sampled at each call
    instead. Pure, but for its clocks.
    """

    def __init__(
        self,
        launch: str,
        node: str,
        process_started_at: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`process_started_at`: when the rank's process was started, Unix seconds."""
        self._launch, self._node, self._clock = launch, node, clock
        self._process_started_at, self._start = process_started_at, clock() - max(0.0, now() - process_started_at)
        self._process: Optional[int] = None
        self._sampled = PhaseClock(clock)
        self._steps: Optional[int] = None
        self._last = process_started_at

    def row(self, progress: RankMemory, over: bool = False) -> TimeRow:
        """Return the row of this moment. `over`: whether the rank has ended."""
        reading = progress.read_phase_clock()
        if reading is None:
            return self._row_from_sampled_state(progress, over)
        if self._process not in (None, reading.process):
            # torchrun has restarted its workers.
            self._start += self._last - self._process_started_at
            self._process_started_at = self._last
        self._process = reading.process
        return self._row(reading, max(0.0, reading.born - self._start), True, over)

    def _row_from_sampled_state(self, progress: RankMemory, over: bool) -> TimeRow:
        state, clock = progress.state(), self._sampled
        if state.phase is not Phase.START and state.begins is not None:
            clock.set_first_step(state.begins)
        if state.step is not None and state.step != self._steps:
            self._steps = state.step
            clock.count_completed_step(state.step)
        clock.enter(state.phase)
        silent = clock.reading.seconds[Phase.START]
        reading = clock.reading._replace(seconds={**clock.reading.seconds, Phase.START: 0.0})
        return self._row(reading, silent, state.phase is not Phase.START, over)

    def _row(self, reading: ClockReading, imported: float, reports: bool, over: bool) -> TimeRow:
        # By the monotonic clock: setting the wall clock meanwhile changes nothing.
        at = self._clock()
        now = self._process_started_at + at - self._start
        seconds: Dict[str, float] = {phase.value: reading.seconds[phase] for phase in COUNTED}
        seconds[time_rows.IMPORT] = imported
        seconds[time_rows.DATA] = reading.data
        seconds[time_rows.OPEN_STEP] = reading.open_step
        current = reading.phase.value
        if reading.phase is Phase.STEP:
            current = time_rows.OPEN_STEP
        if not reports:
            current = time_rows.IMPORT
        seconds[current] += max(0.0, at - reading.counted)
        self._last = now
        return TimeRow(
            self._launch,
            self._node,
            self._process_started_at,
            now,
            reading.phase,
            now - max(0.0, at - reading.since),
            reading.begins,
            reading.step,
            (reading.first_steps, reading.first),
            reading.slowest,
            seconds,
            reports,
            over,
        )


class RowSchedule:
    """Decides when a row is due. Pure: its methods take the `age`, seconds since the process began."""

    def __init__(self) -> None:
        self.due = 0.0
        self._stage: Optional[Phase] = None

    def is_due(self, age: float, row: TimeRow) -> bool:
        """Return whether this row is to be written."""
        return row.over or age >= self.due or self._stage_of(row) is not self._stage

    def schedule_after_written_row(self, age: float, row: TimeRow) -> None:
        """Set the time of the next row, after this one was written."""
        self._stage = self._stage_of(row)
        self.due = age + min(EVERY, max(EARLY, age * PART))

    @staticmethod
    def _stage_of(row: TimeRow) -> Phase:
        return _STAGES.get(row.phase, row.phase)


class TimeLog:
    """Appends rows from its creation until `stop`.

    `rank`: only rank 0 writes rows; `captured`: returns the newest capture in memory at a moment in Unix seconds; it is
    called for each row that is written.
    """

    def __init__(
        self,
        state: Optional[str],
        attempt: Optional[str],
        progress: RankMemory,
        measured: RankTime,
        *,
        rank: int,
        captured: Callable[[float], Optional[MemoryCapture]] = lambda now: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._measured, self._clock, self._captured = progress, measured, clock, captured
        self._schedule = RowSchedule()
        self._over = threading.Event()
        self._path = ""
        self._started_at = clock()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hpk-time")
        if rank == 0 and state and attempt:
            with contextlib.suppress(ValueError):
                self._path = time_rows.path(state, attempt)
        if self._path:
            self._thread.start()

    def stop(self) -> None:
        """Write the last row, as the rank has ended, and wait for it, _END seconds at most."""
        self._over.set()
        if self._path:
            self._thread.join(_END)

    def _watch(self) -> None:
        self._append_row_if_due(over=False)
        while not self._over.wait(CHECK_INTERVAL):
            self._append_row_if_due(over=False)
        self._append_row_if_due(over=True)

    def _append_row_if_due(self, over: bool) -> None:
        row, age = self._measured.row(self._progress, over), self._clock() - self._started_at
        if self._schedule.is_due(age, row):
            with contextlib.suppress(OSError):
                append(self._path, time_rows.encoded(row._replace(captured=self._captured(row.t))))
                self._schedule.schedule_after_written_row(age, row)
