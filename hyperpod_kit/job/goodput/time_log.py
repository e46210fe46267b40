"""The thread of rank 0's wrapper that keeps the rows of time_rows.py.

It appends on its own, so that a file system that hangs keeps no rank waiting; what could not be written then is in the
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
"""Seconds between two looks at the rank."""

EVERY, EARLY, PART = 60.0, 1.0, 0.01
"""Seconds between two rows at most, at least, and as a part of the process's life: a young one is shown exactly."""

_END = 2.0
"""Seconds that the end of a rank waits for its last row."""

_STAGES = {Phase.SAVE: Phase.STEP, Phase.EVALUATION: Phase.STEP}
"""Phases that come and go between steps are no reason for a row."""


def append(path: str, line: bytes) -> None:
    """Add a row and put it on disk; a line before it that is torn is closed. Raises OSError."""
    path = by_descriptor.resolve_parent(path)
    by_descriptor.make_parents(path)
    descriptor = by_descriptor.open_own_or_root_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RankMemory(Protocol):
    """What a rank has written of itself: RankProgress."""

    def read_phase_clock(self) -> Optional[ClockReading]:
        """How it has spent its time; None when it has not said it."""

    def state(self) -> RankState:
        """Its step and its phase."""


class RankTime:
    """From what rank 0 has written of itself to rows. A program that keeps no clock, such as a shell script that writes
    its step, is looked at now and then instead. Pure, but for its clocks."""

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
        """As it is now."""
        reading = progress.read_phase_clock()
        if reading is None:
            return self._row_from_sampled_state(progress, over)
        if self._process not in (None, reading.process):
            # torchrun has started its workers anew.
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
        # A clock of the wall that is set meanwhile moves nothing.
        at = self._clock()
        now = self._process_started_at + at - self._start
        seconds: Dict[str, float] = {phase.value: reading.seconds[phase] for phase in COUNTED}
        seconds[time_rows.IMPORT] = imported
        seconds[time_rows.DATA] = reading.data
        seconds[time_rows.OPEN_STEP] = reading.open_step
        current = time_rows.OPEN_STEP if reading.phase is Phase.STEP else reading.phase.value
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
    """When a row is due. Pure: seconds since the process began are given to it."""

    def __init__(self) -> None:
        self.due = 0.0
        self._stage: Optional[Phase] = None

    def is_due(self, age: float, row: TimeRow) -> bool:
        """Whether this one is to be written."""
        return row.over or age >= self.due or self._stage_of(row) is not self._stage

    def schedule_after_written_row(self, age: float, row: TimeRow) -> None:
        """It was."""
        self._stage = self._stage_of(row)
        self.due = age + min(EVERY, max(EARLY, age * PART))

    @staticmethod
    def _stage_of(row: TimeRow) -> Phase:
        return _STAGES.get(row.phase, row.phase)


class TimeLog:
    """Appends rows from its making on until `stop`. `rank`: only 0 has anything to write. `captured`: asks for the
    newest capture in memory at a moment in Unix seconds, for each row that is written."""

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
        """The rank has ended: the last row."""
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
