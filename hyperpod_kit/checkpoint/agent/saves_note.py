"""A word in shared memory about how the saves of a live run fare, for the node's metrics.

    hpk-<uid>-<run hash>-00000.saves    one page, from rank 0's agent alone: a line of JSON, filled up with spaces

It is written in place: a page that is there can be written where no memory is left. Who reads it is root, and believes
nothing of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

from hyperpod_kit.checkpoint.agent import places, shm_slots
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.held import opened
from hyperpod_kit.untrusted.text import clean

PAGE = 4096
MOST, MOST_OF_ONE = 64, 16
"""Notes that are read, and of those of one user: nobody crowds out the others."""

_NAME = re.compile(r"hpk-([0-9]{1,10})-([0-9a-f]{12})-00000\.saves")
_WORDS, _PATH = 200, 300


class Note(NamedTuple):
    """durable_step, durable_at: of the newest save that this start has brought to storage, None before the first;
    lost_in_row: saves that came to nothing since; last_why: the last of them."""

    run: str
    root: str
    job: str
    durable_step: Optional[int]
    durable_at: Optional[float]
    lost_in_row: int
    last_why: str


class FoundNote(NamedTuple):
    """A note and whose it is, by its name and its owner."""

    uid: int
    run_hash: str
    note: Note


def write(path: str, note: Note) -> None:
    """Leave or renew the note. Raises OSError."""
    words = note._replace(
        run=clean(note.run, _WORDS),
        root=clean(note.root, _PATH),
        job=clean(note.job, 40),
        last_why=clean(note.last_why, _WORDS),
    )
    text = json.dumps(words._asdict(), ensure_ascii=False).encode("utf-8", "replace")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        there = os.fstat(fd)
        if (there.st_uid, there.st_nlink, there.st_size in (0, PAGE)) != (os.geteuid(), 1, True):
            raise PermissionError(errno.EPERM, "not a note of ours", path)
        os.pwrite(fd, text.ljust(PAGE), 0)
    finally:
        os.close(fd)


def remove(folder: str, uid: int, run: str) -> None:
    """The run has ended, or is dead and has nothing in memory any more. What is not ours stays."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, shm_slots.saves_file(uid, run, 0)))


def read_all(folder: str) -> List[FoundNote]:
    """The notes that lie there; whatever is none is passed over. Raises OSError."""
    found: List[FoundNote] = []
    counts: Dict[int, int] = {}
    with contextlib.closing(places.listed(folder, ".saves", MOST_OF_ONE)) as notes:
        for uid, name, named in notes:
            match = _NAME.fullmatch(name)
            note = _read(named) if match is not None and counts.get(uid, 0) < MOST_OF_ONE else None
            if match is not None and note is not None:
                counts[uid] = counts.get(uid, 0) + 1
                found.append(FoundNote(uid, match.group(2), note))
            if len(found) == MOST:
                break
    return found


def _read(named: int) -> Optional[Note]:
    try:
        fd = opened(named, os.O_RDONLY)
        try:
            return _of(parse.document(os.pread(fd, PAGE, 0))) if os.fstat(fd).st_size <= PAGE else None
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def _of(said: Any) -> Optional[Note]:
    if not isinstance(said, dict) or set(said) != set(Note._fields):
        return None
    note = Note(**said)
    words = (note.run, note.root, note.job, note.last_why)
    if not all(type(word) is str for word in words) or not is_count(note.lost_in_row):
        return None
    if (note.durable_step is None) != (note.durable_at is None):
        return None
    if note.durable_step is not None and not (is_count(note.durable_step) and is_time(note.durable_at)):
        return None
    return note._replace(
        run=clean(note.run, _WORDS),
        root=clean(note.root, _PATH),
        job=clean(note.job, 40),
        last_why=clean(note.last_why, _WORDS),
    )


def is_count(value: object) -> bool:
    """A number of steps or saves, as JSON has it."""
    return type(value) is int and 0 <= value < 2**63


def is_time(value: object) -> bool:
    """Unix seconds, as JSON has them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11
