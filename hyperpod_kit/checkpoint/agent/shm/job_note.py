"""A word in shared memory about how a running job fares, for the metrics of the node that its batch script is on.

    hpk-<uid>-<number of the job>.job    one page, from `job run` alone, which holds a lock (fcntl) on it while it lives
    hpk-<uid>-<number of the job>.time   another, with what its time went into
    hpk-<uid>-<number of the job>.step   a third, with the step that it has reached

So a note of a `job run` that was killed says nothing any more, and the next one of the same user removes it. The lock
is the process's and not the file's (flock): a child of it that hangs at a dead mount holds none.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar, Union

from hyperpod_kit.checkpoint.agent.shm import note_page
from hyperpod_kit.checkpoint.agent.shm.note_page import is_count, is_number_of_seconds
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json

T = TypeVar("T")

_NAME = re.compile(r"hpk-([0-9]{1,10})-([0-9]{1,10})\.(?:job|time|step)")
_JOB = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_CLASS = re.compile(r"[a-z_]{1,20}")
_CLASSES = 16
"""Ways to end that are taken from one note; there are 11."""
_CAUSE = re.compile(r"[a-z-]{1,20}")
_CAUSES = 16
"""Names of causes that are taken from one note; there are 12."""
_READ_TIME = 1.0
"""Seconds in which a check of the node has long looked at a note and let go of it."""


class JobNote(NamedTuple):
    """job: its id, `7_2` for a task of an array; attempts: those so far, of all runs of its batch script; started: of
    the attempt that runs, Unix seconds, None between two; lost_steps: done twice so far; goodput: 0 to 1, of the GPU
    time that the job has held; both None when nobody knows; ends: class -> attempts that ended so."""

    job: str
    attempts: int
    started: Optional[float]
    lost_steps: Optional[int]
    goodput: Optional[float]
    ends: Dict[str, int]


class TimeNote(NamedTuple):
    """job: as in JobNote; gpu_seconds: name of a cause -> GPU-seconds of this run of its batch script, which only
    grow."""

    job: str
    gpu_seconds: Dict[str, float]


class JobStepNote(NamedTuple):
    """job: as in JobNote; step: the last one that rank 0 of the running attempt has completed; moved: when rank 0 last
    moved, Unix seconds: the end of that step, or later where it saves or evaluates; step_seconds: of a usual step, None
    while that is unknown."""

    job: str
    step: int
    moved: float
    step_seconds: Optional[float]


class FoundJob(NamedTuple):
    """A note and whose it is, by its name and its owner. `time`, `step`: the others of the same job, where there are
    such."""

    uid: int
    note: JobNote
    time: Optional[TimeNote] = None
    step: Optional[JobStepNote] = None


class LockedNote:
    """The note of the job `number` in `folder`, for as long as this process holds it. Raises OSError, BlockingIOError
    when another does: a batch script may run several at once."""

    def __init__(self, folder: str, uid: int, number: str, ending: str = "job") -> None:
        self._path = os.path.join(folder, f"hpk-{uid}-{number}.{ending}")
        until = time.monotonic() + _READ_TIME
        while True:
            self._fd = note_page.open_or_create_own(self._path)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another may have swept it away between the two.
                if os.path.samestat(os.fstat(self._fd), os.lstat(self._path)):
                    return
            except FileNotFoundError:
                pass
            except BlockingIOError:
                if time.monotonic() > until:
                    os.close(self._fd)
                    raise
                time.sleep(0.02)
            os.close(self._fd)

    def put(self, note: Union[JobNote, TimeNote, JobStepNote]) -> None:
        """Write the note to its file. Raises OSError."""
        note_page.write_json_page(self._fd, note._asdict())

    def clear(self) -> None:
        """Let the note say nothing until the next one is written. Raises OSError."""
        note_page.write_json_page(self._fd, {})

    def remove_file_and_unlock(self) -> None:
        """Remove the note's file and release the lock: the job ends here, or goes on elsewhere."""
        with contextlib.suppress(OSError):
            by_descriptor.unlink(self._path)
        os.close(self._fd)


def remove_stale(folder: str, uid: int) -> None:
    """Remove our notes whose `job run` is no more. Raises OSError."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is None or match.group(1) != str(uid):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            fd = note_page.open_or_create_own(path)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                by_descriptor.unlink(path)
            finally:
                os.close(fd)


def read_notes_of_live_jobs(folder: str) -> List[FoundJob]:
    """The notes of jobs that run; whatever is none is passed over. Raises OSError."""
    jobs = _read_notes_of_live_jobs(folder, ".job", _parse_job_note)
    times = {(uid, note.job): note for uid, note in _read_notes_of_live_jobs(folder, ".time", parse_time_note)}
    steps = {(uid, note.job): note for uid, note in _read_notes_of_live_jobs(folder, ".step", parse_step_note)}
    return [FoundJob(uid, note, times.get((uid, note.job)), steps.get((uid, note.job))) for uid, note in jobs]


def _read_notes_of_live_jobs(folder: str, ending: str, parse: Callable[[Any], Optional[T]]) -> List[Tuple[int, T]]:
    """Return the notes with this ending whose `job run` lives, each with its user. Raises OSError."""

    def parse_if_locked(page: note_page.FoundPage) -> Optional[Tuple[int, T]]:
        if not _is_locked(page):
            return None
        note = parse(page.read_json_body())
        if note is None:
            return None
        return page.uid, note

    return note_page.read_notes_of_all_users(folder, ending, _NAME, parse_if_locked)


def _is_locked(page: note_page.FoundPage) -> bool:
    """Whether a `job run` that lives has written it."""
    try:
        fcntl.lockf(page.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False  # nobody holds it; the lock goes with the descriptor
    except BlockingIOError:
        return True


def parse_time_note(body: Any) -> Optional[TimeNote]:
    """None for what is no such note."""
    try:
        note = dataclass_from_json(TimeNote, body)
    except ValueError:
        return None
    good = (
        _JOB.fullmatch(note.job),
        len(note.gpu_seconds) <= _CAUSES
        and all(_CAUSE.fullmatch(name) and is_number_of_seconds(seconds) for name, seconds in note.gpu_seconds.items()),
    )
    if all(good):
        return note
    return None


def parse_step_note(body: Any) -> Optional[JobStepNote]:
    """None for what is no such note."""
    try:
        note = dataclass_from_json(JobStepNote, body)
    except ValueError:
        return None
    good = (
        _JOB.fullmatch(note.job),
        is_count(note.step),
        is_number_of_seconds(note.moved),
        note.step_seconds is None or is_number_of_seconds(note.step_seconds),
    )
    if all(good):
        return note
    return None


def _parse_job_note(body: Any) -> Optional[JobNote]:
    try:
        note = dataclass_from_json(JobNote, body)
    except ValueError:
        return None
    good = (
        _JOB.fullmatch(note.job),
        is_count(note.attempts),
        note.started is None or is_number_of_seconds(note.started),
        note.lost_steps is None or is_count(note.lost_steps),
        note.goodput is None or (is_number_of_seconds(note.goodput) and note.goodput <= 1),
        len(note.ends) <= _CLASSES
        and all(_CLASS.fullmatch(name) and is_count(count) for name, count in note.ends.items()),
    )
    if all(good):
        return note
    return None
