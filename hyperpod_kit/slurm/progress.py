"""The last step that a rank completed and the phase it is in, without a file system: text in anonymous memory of the
rank's wrapper.

The wrapper makes it and names it in HPK_PROGRESS; whoever runs below writes a number there (`echo 120 >
"$HPK_PROGRESS"` in a shell, `echo "120 evaluation"` with a phase, `Manager.step` by itself). The wrapper reads it while
the rank runs and once more when it has ended, however it ended. In a container with process ids of its own there is no
such file, and nothing is known (`… || true` in a shell with set -e).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
from typing import Callable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.environment import HPK_PROGRESS
from hyperpod_kit.slurm import phase_clock
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import ClockReading, PhaseClock

NAME = "hpk-progress"
_PATH = re.compile(r"/proc/[0-9]+/fd/[0-9]+")

_BEGINS, _FAILED, _PHASES = 64, 128, 192
"""Where the first step stands, how many saves came to nothing, and the phases: behind what a person may write."""

_WIDTH, _PROCESSES = 64, 64
"""Bytes of a phase, and of how many processes below one wrapper (torchrun's) each has a place of its own."""

_CLOCK = _PHASES + _WIDTH * _PROCESSES
"""Where the first of these processes, which is rank 0 below rank 0's wrapper, writes how it has spent its time."""

_LOOKS = 3
"""Readings of it that may be torn."""


_SHOWN_FIRST = (Phase.EVALUATION, Phase.RESTORE, Phase.SAVE, Phase.CLOSE, Phase.STEP, Phase.OVER)
"""Which phase stands for a rank whose processes are in several: the one that the others wait for."""


class RankState(NamedTuple):
    """`step`: the last one completed, `begins`: the first one to do; `moved` grows as a phase gets on by itself."""

    step: Optional[int]
    begins: Optional[int]
    phase: Phase
    moved: int


class ReportedProgress:
    """What a rank has written of itself, by a descriptor of that memory."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def completed_step(self) -> Optional[int]:
        """Return the last step that the rank completed; None when none was written."""
        return self._number_at(0)

    def first_step(self) -> Optional[int]:
        """Return the first step that the rank is to do; None when none was written."""
        return self._number_at(_BEGINS)

    def failed_save_count(self) -> int:
        """Return how many saves of the rank came to nothing, as it has written."""
        return self._number_at(_FAILED) or 0

    def state(self) -> RankState:
        """Return the steps and the phase of the rank now. Where its processes are in several phases, the one that
        the others wait for counts."""
        step, begins = self.completed_step(), self.first_step()
        phases = self._phase_and_advances_per_process()
        moved = sum(count for _, count in phases)
        present = {phase for phase, _ in phases}
        for phase in _SHOWN_FIRST:
            if phase in present:
                return RankState(step, begins, phase, moved)
        if step is None and begins is None:
            return RankState(step, begins, Phase.START, moved)
        return RankState(step, begins, Phase.STEP, moved)

    def read_phase_clock(self) -> Optional[ClockReading]:
        """Return how the first process below this wrapper has spent its time; None when it has written nothing
        whole."""
        for _ in range(_LOOKS):
            reading = phase_clock.decode_reading(os.pread(self._fd, phase_clock.WIDTH, _CLOCK))
            if reading is not None:
                return reading
        return None

    def _number_at(self, offset: int) -> Optional[int]:
        fields = self._fields_at(offset)
        if fields and fields[0].isdigit():
            return int(fields[0])
        return None

    def _fields_at(self, offset: int) -> List[bytes]:
        return os.pread(self._fd, _WIDTH, offset).split(b"\n")[0].split()

    def _phase_and_advances_per_process(self) -> List[Tuple[Phase, int]]:
        """Return the phase, and the count of its advances, of each process that has written one; a shell's stands
        behind its step."""
        data = os.pread(self._fd, _WIDTH * _PROCESSES, _PHASES)
        entries = [data[offset : offset + _WIDTH].split(b"\n")[0].split() for offset in range(0, len(data), _WIDTH)]
        entries.append([*self._fields_at(0)[1:2], b"0"])
        phases = []
        for entry in entries:
            if len(entry) == 2 and entry[1].isdigit():
                with contextlib.suppress(ValueError):
                    phases.append((Phase(entry[0].decode("ascii", "replace")), int(entry[1])))
        return phases


class RankProgress(ReportedProgress):
    """The wrapper's side."""

    def __init__(self) -> None:
        super().__init__(os.memfd_create(NAME, os.MFD_CLOEXEC))
        # Where process ids are another container's, the path may name a process that is none of ours: let it be a
        # descriptor that nobody has open there.
        with contextlib.suppress(OSError):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            far = fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, min(900, limit * 3 // 4))
            os.close(self._fd)
            self._fd = far

    @property
    def path(self) -> str:
        """The path that a process of the same user opens to write; it is there as long as the wrapper lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"


@contextlib.contextmanager
def open_progress(path: str) -> Iterator[ReportedProgress]:
    """Open for reading the memory that HPK_PROGRESS names, from another process of the same user. Raises
    OSError; ValueError for what is no such memory."""
    if not _PATH.fullmatch(path) or not os.readlink(path).startswith(f"/memfd:{NAME}"):
        raise ValueError(f"{path} is not the memory of a rank's wrapper")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield ReportedProgress(descriptor)
    finally:
        os.close(descriptor)


class ProgressWriter:
    """The rank's side. Keeps no descriptor; says nothing where there is no wrapper, or it is not in sight. `waited`:
    seconds that this process has waited for samples so far."""

    def __init__(self, env: Mapping[str, str] = os.environ, waited: Callable[[], float] = lambda: 0.0) -> None:
        self._path = env.get(HPK_PROGRESS)
        self._failed = self._moved = 0
        self._phase = Phase.START
        process = env.get("LOCAL_RANK", "")
        number = 0
        if process.isdigit():
            number = int(process) % _PROCESSES
        self._offset = _PHASES + _WIDTH * number
        self._clock: Optional[PhaseClock] = None
        if self._path and not number:
            self._clock = PhaseClock(waited=waited)

    def report_completed_step(self, step: int) -> None:
        """Write that the rank has completed this step. Five system calls on memory, no file system."""
        if self._phase is not Phase.STEP:
            self.report_phase(Phase.STEP)
        if self._clock is not None:
            self._clock.count_completed_step(step)
        self._write_to_wrapper_memory(_encode_number_at_offset(step, 0), *self._encode_clock_at_offset())

    def report_first_step(self, step: int) -> None:
        """Write that the rank has restored its state and which step is its first, and enter the phase STEP."""
        self._write_to_wrapper_memory(_encode_number_at_offset(step, _BEGINS))
        if self._clock is not None:
            self._clock.set_first_step(step)
        self.report_phase(Phase.STEP)

    def report_failed_save(self) -> None:
        """Count one more save that came to nothing, upon which the wrapper reads the checkpoint root without
        delay."""
        self._failed += 1
        self._write_to_wrapper_memory(_encode_number_at_offset(self._failed, _FAILED))

    @contextlib.contextmanager
    def report_phase_during(self, phase: Phase) -> Iterator[None]:
        """Report this phase, and at the end the one before again unless the rank has entered another."""
        before = self._phase
        self.report_phase(phase)
        try:
            yield
        finally:
            if self._phase is phase:
                self.report_phase(before)

    def report_phase_advance(self) -> None:
        """Write that the current phase gets on: bytes were read or written."""
        self._moved += 1
        self._write_to_wrapper_memory(self._encode_phase_at_offset())

    def report_phase(self, phase: Phase) -> None:
        """Write that the rank is in this phase from now on."""
        self._phase = phase
        if self._clock is not None:
            self._clock.enter(phase)
        self._write_to_wrapper_memory(self._encode_phase_at_offset(), *self._encode_clock_at_offset())

    def _encode_phase_at_offset(self) -> Tuple[bytes, int]:
        return b"%s %d\n" % (self._phase.value.encode(), self._moved), self._offset

    def _encode_clock_at_offset(self) -> List[Tuple[bytes, int]]:
        if self._clock is not None:
            return [(self._clock.encode(), _CLOCK)]
        return []

    def _write_to_wrapper_memory(self, *pieces: Tuple[bytes, int]) -> None:
        if not self._path:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # a container with process ids of its own
            self._path = self._clock = None
            return
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{NAME}"):
            self._path = self._clock = None
            os.close(fd)
            return
        try:
            for data, offset in pieces:
                os.pwrite(fd, data, offset)
        finally:
            os.close(fd)


def _encode_number_at_offset(number: int, offset: int) -> Tuple[bytes, int]:
    return b"%020d\n" % number, offset
