"""Waiting for captures that other nodes are still bringing to storage (checkpoint/repository/flush_note.py).

The nodes of a run that ended may save what it left in memory for minutes, and the next run begins elsewhere. Whether
such a save goes on is seen by its note, which changes while it does: no clock of another machine is believed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository import flush_note, rollbacks
from hyperpod_kit.checkpoint.repository.flush_note import FlushNote
from hyperpod_kit.checkpoint.repository.layout import CheckpointId
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import NoValidCheckpoint
from hyperpod_kit.job.resume import checkpoint_choice

SILENT = 30.0
"""Seconds after which a note that is not written any more is of a node that has died, or of a flush that was killed: it
is renewed each second, or as often as a storage that is busy with what the flush writes lets it."""

STALL = 120.0
"""Seconds without a byte moved, after which a flush is waited for no longer: its storage hangs, or it waits itself."""

CHECK_INTERVAL = 1.0
SAY = 15.0
"""Seconds between two looks, and between two lines about them."""


@dataclass
class _NoteObservation:
    """`last`: as it was found, None for one that is just being written; `note`: the last that could be read."""

    last: Optional[FlushNote]
    note: Optional[FlushNote]
    changed: float
    moved: float


class FlushWatch:
    """What is known of the notes of a root. `look` is told what lies there, and when."""

    def __init__(self) -> None:
        self._observation_by_name: Dict[str, _NoteObservation] = {}

    def update_and_list_ongoing_flushes(
        self, notes_found: Mapping[str, Optional[FlushNote]], order: Optional[Tuple[int, int]], now: float
    ) -> List[Optional[FlushNote]]:
        """The flushes that go on, of captures newer than `order` (None: any); None for one that cannot be read yet."""
        self._observation_by_name = {
            name: observation for name, observation in self._observation_by_name.items() if name in notes_found
        }
        going = []
        for name, note in notes_found.items():
            observation = self._observation_by_name.setdefault(name, _NoteObservation(note, note, now, now))
            if note != observation.last:
                observation.last, observation.changed = note, now
            if note is not None and note != observation.note:
                if observation.note is None or (note.moved, note.order) != (
                    observation.note.moved,
                    observation.note.order,
                ):
                    observation.moved = now
                observation.note = note
            newer = observation.note is None or order is None or observation.note.order > order
            if newer and now - observation.changed < SILENT and now - observation.moved < STALL:
                going.append(observation.note)
        return going

    def silent(self, now: float) -> List[str]:
        """The names of notes that nobody renews any more."""
        return [name for name, observation in self._observation_by_name.items() if now - observation.changed >= SILENT]


def needs_nothing_newer(choice: checkpoint_choice.Choice) -> bool:
    """Whether nothing newer is wanted: who steps back takes nothing from memory either, and another framework's trainer
    captures nothing there."""
    return choice.stepped_back or choice.kind != checkpoint_choice.KIT_KIND


Notes = Callable[[List[str]], Mapping[str, Optional[FlushNote]]]
"""notes(stale) -> those that lie there now, once the stale ones are removed. Raises OSError."""


def make_note_reader(root: str) -> Notes:
    """As `outlast` wants them."""

    def read(stale: List[str]) -> Mapping[str, Optional[FlushNote]]:
        store = open_store(root)
        for name in stale:
            flush_note.try_remove(store, name)
        note_by_name = flush_note.read_all(store)
        standing = rollbacks.read_active_records(store) if note_by_name else []
        return {
            name: note
            for name, note in note_by_name.items()
            if note is None or not _is_excluded_by_rollback(standing, note)
        }

    return read


def _is_excluded_by_rollback(active_records: Sequence[rollbacks.RollbackRecord], note: FlushNote) -> bool:
    """Whether the run has gone back to before that capture, or begun anew since: nobody waits for it."""
    return (
        rollbacks.find_excluding_record(active_records, CheckpointId(note.seq, note.step, note.epoch, "")) is not None
    )


def choose_after_flushes_end(
    choose: Callable[[], checkpoint_choice.Choice],
    notes: Notes,
    limit: float,
    *,
    root: str = "",
    pause: Callable[[float], None] = time.sleep,
    report_line: Callable[[str], None] = lambda line: None,
) -> checkpoint_choice.Choice:
    """The choice once nothing newer is on its way, for `limit` seconds at most. Raises what its parts raise, and
    NoValidCheckpoint where nothing else is there to begin from: step 0 would be older than what a node still saves."""
    begin, reported_at = time.monotonic(), 0.0
    watch = FlushWatch()
    previous_orders: Optional[Set[Optional[Tuple[int, int]]]] = None
    stale: List[str] = []
    choice = choose()
    while not needs_nothing_newer(choice):
        note_by_name, now = notes(stale), time.monotonic()
        going = watch.update_and_list_ongoing_flushes(note_by_name, choice.order, now)
        stale = watch.silent(now)
        orders = {note.order if note is not None else None for note in going}
        if previous_orders is not None and orders != previous_orders:
            # One is on storage, or has ended otherwise.
            choice, previous_orders = choose(), None
            continue
        if not going:
            if stale:
                notes(stale)
            break
        if now - begin >= limit:
            report_line(f"{words_of(going)}; not waiting any longer: {limit:g} s are over")
            if choice.source == checkpoint_choice.NONE:
                raise NoValidCheckpoint(root, [("nothing yet", words_of(going))], hint=f"ls -l {root}/flushes")
            break
        if previous_orders is None or now - reported_at >= SAY:
            reported_at = now
            report_line(f"{words_of(going)}; waiting up to {limit - (now - begin):.0f} s more")
        previous_orders = orders
        pause(CHECK_INTERVAL)
    return choice


def words_of(going: List[Optional[FlushNote]]) -> str:
    """What is on its way, for people."""
    readable_notes = [note for note in going if note is not None]
    if not readable_notes:
        return "a node still brings captures from memory to storage"
    newest = max(readable_notes, key=lambda note: note.order)
    moved, size = sum(note.moved for note in readable_notes), sum(note.bytes for note in readable_notes)
    hosts = sorted({note.host for note in readable_notes})
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return (
        f"{shown} still {'bring' if len(hosts) > 1 else 'brings'} step {newest.step} (seq {newest.seq}) of job "
        f"{newest.job or '?'} from memory to storage, {moved / 1e9:.1f} of {size / 1e9:.1f} GB"
    )
