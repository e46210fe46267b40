"""A word in shared memory about how the saves of a live run fare, for the node's metrics.

hpk-<uid>-<run hash>-00000.saves    one page, from rank 0's agent alone: a line of JSON, filled up with spaces
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, List, NamedTuple, Optional

from hyperpod_kit.checkpoint.agent.shm import note_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.note_page import is_count, is_number_of_seconds
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.text import clean_one_line

_NAME = re.compile(r"hpk-([0-9]{1,10})-([0-9a-f]{12})-00000\.saves")
_MOST_CHARACTERS, _MOST_PATH_CHARACTERS = 200, 300


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
    """Write the note, or replace the one that is there. Raises OSError."""
    fd = note_page.open_or_create_own(path)
    try:
        note_page.write_json_page(fd, _bounded(note)._asdict())
    finally:
        os.close(fd)


def remove(folder: str, uid: int, run: str) -> None:
    """Remove the note of a run that has ended, or is dead with nothing in memory. What is not ours stays."""
    with contextlib.suppress(OSError):
        by_descriptor.unlink(os.path.join(folder, shm_slots.failure_note_file_name(uid, run, 0)))


def read_all(folder: str) -> List[FoundNote]:
    """The notes that lie there; whatever is none is passed over. Raises OSError."""
    return note_page.read_notes_of_all_users(folder, ".saves", _NAME, _read)


def _read(page: note_page.FoundPage) -> Optional[FoundNote]:
    note = _parse_note(page.read_json_body())
    if note is not None:
        return FoundNote(page.uid, page.name.group(2), note)
    return None


def _parse_note(body: Any) -> Optional[Note]:
    try:
        note = dataclass_from_json(Note, body)
    except ValueError:
        return None
    if not is_count(note.lost_in_row):
        return None
    if (note.durable_step is None) != (note.durable_at is None):
        return None
    if note.durable_step is not None and not (is_count(note.durable_step) and is_number_of_seconds(note.durable_at)):
        return None
    return _bounded(note)


def _bounded(note: Note) -> Note:
    return note._replace(
        run=clean_one_line(note.run, _MOST_CHARACTERS),
        root=clean_one_line(note.root, _MOST_PATH_CHARACTERS),
        job=clean_one_line(note.job, 40),
        last_why=clean_one_line(note.last_why, _MOST_CHARACTERS),
    )
