"""Keep for `job status` how far the running attempt has come: in a small file beside the ledger, renewed now and then.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.step.hang import describe_positions_of_ranks, furthest
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.system.atomic_file import open_for_atomic_replace
from hyperpod_kit.untrusted import files, parse
from hyperpod_kit.untrusted.text import clean_one_line

FILE = "steps.json"

EVERY = 30.0
"""Seconds between two writes."""

_EARLY = 3.0
"""Seconds between two writes until a rank has completed a step."""

_LARGEST = 1 << 14
_MOST = 1 << 62


class StepNote(NamedTuple):
    """How far an attempt had come. `reached`: the last step that any rank had completed; `moved`: when the ranks made
    progress last, and `written`: when this was written, both Unix seconds; `where`: the positions of all ranks, as a
    sentence."""

    attempt: str
    reached: Optional[int]
    moved: float
    written: float
    where: str


def read(state: str) -> Optional[StepNote]:
    """Return the note that is there; None where there is none, or the file is none of ours. Raises OSError."""
    try:
        value = parse.parse_json_object(files.read_small_regular_file(os.path.join(state, FILE), _LARGEST))
    except (FileNotFoundError, ValueError, Untrusted):
        return None
    attempt, reached, positions = value.get("attempt"), value.get("reached"), value.get("where")
    moved: Any = value.get("moved")
    written: Any = value.get("written")
    if not isinstance(attempt, str) or not isinstance(positions, str):
        return None
    if reached is not None and (type(reached) is not int or not 0 <= reached < _MOST):
        return None
    if not _is_time(moved) or not _is_time(written):
        return None
    return StepNote(attempt, reached, moved, written, clean_one_line(positions, 2000))


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e11


class StepNoteWriter:
    """Writes the notes of one attempt, on a thread of its own, so that a file system that hangs delays nothing else;
    while it hangs, no other note is written."""

    def __init__(
        self,
        state: str,
        attempt: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.join(state, FILE)
        self._attempt, self._clock, self._now = attempt, clock, now
        self._due = clock()
        self._thread: Optional[threading.Thread] = None

    def write_note_if_due(self, reports: Mapping[int, StepReport], seconds_without_progress: float) -> None:
        """Start to write the note where one is due and no write is under way."""
        if not reports or self._clock() < self._due:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        now, reached = self._now(), furthest(reports)
        delay = _EARLY if reached is None else EVERY
        self._due = self._clock() + delay
        note = StepNote(
            self._attempt,
            reached,
            round(now - seconds_without_progress, 1),
            round(now, 1),
            describe_positions_of_ranks(reports),
        )
        # By hand: nobody ever waits for it, and what no OSError is must show.
        self._thread = threading.Thread(target=self._write, args=(note,), daemon=True, name="hpk-step-note")
        self._thread.start()

    def _write(self, note: StepNote) -> None:
        with contextlib.suppress(OSError), open_for_atomic_replace(self._path, 0o640) as file:
            file.write(json.dumps(note._asdict()).encode())
