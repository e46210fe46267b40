"""Captures of dead trainers that a node is bringing to storage: a note per node and run, while it does.

    flushes/<host>-<id>.json    made when a flush begins, written again while it goes on, removed at its end

A start that would begin from something older waits as long as the note changes (job/resume/unfinished_flushes.py): no
clock is compared. A note only makes others wait, and they do so for a time of their own; where storage overwrites
nothing it never changes, and nobody waits for long.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Optional, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line

FORMAT = "hpk-flush/1"
MOST = 4096
"""Notes that are read: one a node."""

_LARGEST = 4096
_SUFFIX = ".json"


@dataclass(frozen=True)
class FlushNote:
    """What is on its way: the newest capture of these that is not on storage yet. `bytes` of all of them here, of which
    `moved` are written; `beat` counts how often the note was written. `committed`: the newest attempt on storage when
    the flush began, "" where there was none."""

    host: str
    job: str
    epoch: int
    seq: int
    step: int
    bytes: int
    moved: int = 0
    beat: int = 0
    committed: str = ""

    @property
    def order(self) -> Tuple[int, int]:
        """As of an attempt: greater is newer."""
        return (self.epoch, self.seq)


def node_name() -> str:
    """Return this node's host name, reduced to characters that a file name may have."""
    return "".join(char if char.isalnum() else "-" for char in socket.gethostname())[:60]


def new_note_path() -> str:
    """Return a unique name for a new note of this node."""
    return f"{layout.FLUSHES}/{node_name()}-{secrets.token_hex(6)}{_SUFFIX}"


def write(store: Store, name: str, note: FlushNote) -> None:
    """Create the note, or overwrite it where the storage can. Raise CheckpointError, OSError."""
    data = manifest.seal_json({"format": FORMAT, **asdict(note)})
    if note.beat == 0:
        store.create(name, data)
    elif store.capabilities.overwrite:
        store.overwrite_non_atomically(name, data)


def try_remove(store: Store, name: str) -> None:
    """Delete the note at the end of a flush. Raise nothing: a note that stays no longer changes, which readers
    notice."""
    with contextlib.suppress(CheckpointError, OSError):
        store.delete(name)


def read_all(store: Store) -> Dict[str, Optional[FlushNote]]:
    """Return the notes that exist, by name; None for one that is being written or is no note. Raise OSError."""
    names = [name for name in store.list(layout.FLUSHES) if name.endswith(_SUFFIX)][:MOST]
    notes: Dict[str, Optional[FlushNote]] = {}
    for name in (f"{layout.FLUSHES}/{name}" for name in names):
        with contextlib.suppress(FileNotFoundError):
            notes[name] = _read(store, name)
    return notes


def _read(store: Store, name: str) -> Optional[FlushNote]:
    try:
        body: Dict[str, Any] = manifest.parse_sealed_json(store.read(name, _LARGEST), name)
        # Notes of builds before 0.1.0 do not say what was committed.
        note = FlushNote(**{field.name: body[field.name] for field in fields(FlushNote) if field.name in body})
    except FileNotFoundError:
        raise
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None
    counts = (note.epoch, note.seq, note.step, note.bytes, note.moved, note.beat)
    if body.get("format") != FORMAT or not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
        return None
    if not all(isinstance(word, str) for word in (note.host, note.job, note.committed)):
        return None
    return FlushNote(
        clean_one_line(note.host, 80),
        clean_one_line(note.job, 40),
        *counts,
        committed=clean_one_line(note.committed, 200),
    )
