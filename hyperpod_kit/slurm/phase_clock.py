"""How a rank has spent its time so far: seconds of each phase, as text of one line in the memory of its wrapper.

Times are seconds on the node's monotonic clock, which both sides read.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from hyperpod_kit.slurm.phase import Phase

WIDTH = 384
"""Bytes of a reading."""

COUNTED = (Phase.START, Phase.RESTORE, Phase.STEP, Phase.SAVE, Phase.EVALUATION, Phase.CLOSE, Phase.OVER)
"""The phases that a rank enters, in the order of a reading."""

_MICRO = 1_000_000
_FIELDS = 12 + len(COUNTED)


class ClockReading(NamedTuple):
    """Of the process `process`, whose clock was made at `born`, up to `counted`. `since`: when its phase began;
    `step`: the last one completed, `begins`: the first one to do. `first_steps`: how many steps the first report
    was of, and `first` their seconds; `slowest`: seconds of the slowest step after them. `seconds`: of each phase, of
    steps those that were completed; `open_step`: of the one under way; `data`: waited for samples, part of no phase."""

    process: int
    phase: Phase
    born: float
    counted: float
    since: float
    begins: Optional[int]
    step: Optional[int]
    first_steps: int
    first: float
    slowest: float
    open_step: float
    data: float
    seconds: Dict[Phase, float]


class PhaseClock:
    """The rank's side. `waited`: seconds that the process has waited for samples so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, waited: Callable[[], float] = lambda: 0.0) -> None:
        self._clock, self._waited = clock, waited
        self._waited_before = waited()
        self._number = 0
        now = clock()
        self.reading = ClockReading(
            process=os.getpid(),
            phase=Phase.START,
            born=now,
            counted=now,
            since=now,
            begins=None,
            step=None,
            first_steps=0,
            first=0.0,
            slowest=0.0,
            open_step=0.0,
            data=0.0,
            seconds={phase: 0.0 for phase in COUNTED},
        )

    def enter(self, phase: Phase) -> None:
        """Count the time so far to the current phase, and switch to this one."""
        reading = self._reading_until_now()
        if phase is not reading.phase:
            reading = reading._replace(phase=phase, since=reading.counted)
        self.reading = reading

    def set_first_step(self, step: int) -> None:
        """Set which step is the first that the rank does."""
        self.reading = self.reading._replace(begins=step)

    def count_completed_step(self, step: int) -> None:
        """Count this step as completed, with the time that it took; the same step twice counts once."""
        reading = self.reading = self._reading_until_now()
        if step == reading.step:
            return
        before = reading.step
        if before is None and reading.begins is not None:
            before = reading.begins - 1
        if before is not None:
            steps = max(1, step - before)
        else:
            steps = 1
        if reading.step is None:
            reading = reading._replace(first_steps=steps, first=reading.open_step)
        else:
            reading = reading._replace(slowest=max(reading.slowest, reading.open_step / steps))
        completed = reading.seconds[Phase.STEP] + reading.open_step
        self.reading = reading._replace(open_step=0.0, step=step, seconds={**reading.seconds, Phase.STEP: completed})

    def encode(self) -> bytes:
        """Serialize the reading for `decode_reading`, with a new number at both ends that shows that the line is
        whole."""
        self._number += 1
        reading = self.reading
        numbers: List[int] = [
            self._number,
            reading.process,
            COUNTED.index(reading.phase),
            *map(_to_microseconds, (reading.born, reading.counted, reading.since)),
            -1 if reading.begins is None else reading.begins,
            -1 if reading.step is None else reading.step,
            reading.first_steps,
            *map(_to_microseconds, (reading.first, reading.slowest, reading.open_step, reading.data)),
            *(_to_microseconds(reading.seconds[phase]) for phase in COUNTED),
            self._number,
        ]
        return " ".join(map(str, numbers)).encode() + b"\n"

    def _reading_until_now(self) -> ClockReading:
        """Return the reading with the time since the last count added to its phase."""
        reading, now, waited = self.reading, self._clock(), self._waited()
        passed = max(0.0, now - reading.counted)
        data = min(passed, max(0.0, waited - self._waited_before))
        self._waited_before = waited
        reading = reading._replace(counted=now, data=reading.data + data)
        if reading.phase is Phase.STEP:
            return reading._replace(open_step=reading.open_step + passed - data)
        seconds = reading.seconds[reading.phase] + passed - data
        return reading._replace(seconds={**reading.seconds, reading.phase: seconds})


def decode_reading(text: bytes) -> Optional[ClockReading]:
    """Parse what `encode` wrote; None for what is no whole reading."""
    fields = text.split(b"\n")[0].split()
    try:
        numbers = [int(word) for word in fields]
    except ValueError:
        return None
    if len(numbers) != _FIELDS + 2 or numbers[0] != numbers[-1] or not 0 <= numbers[2] < len(COUNTED):
        return None
    process, phase, born, counted, since, begins, step, first_steps, first, slowest, open_step, data = numbers[1:13]
    return ClockReading(
        process,
        COUNTED[phase],
        born / _MICRO,
        counted / _MICRO,
        since / _MICRO,
        begins if begins >= 0 else None,
        step if step >= 0 else None,
        first_steps,
        first / _MICRO,
        slowest / _MICRO,
        open_step / _MICRO,
        data / _MICRO,
        {phase: value / _MICRO for phase, value in zip(COUNTED, numbers[13:-1])},
    )


def _to_microseconds(seconds: float) -> int:
    return round(seconds * _MICRO)
