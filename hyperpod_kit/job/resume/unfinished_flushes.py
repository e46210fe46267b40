"""Waits for captures that other nodes are still bringing to storage (checkpoint/repository/records/flush_note.py).

The nodes of a run that ended may save what it left in memory for minutes, and the next run begins elsewhere. Whether
such a save goes on is seen by its note, which changes while it does: no clock of another machine is trusted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.format.layout import CheckpointId
from hyperpod_kit.checkpoint.repository.records import flush_note, rollbacks
from hyperpod_kit.checkpoint.repository.records.flush_note import FlushNote
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import NoValidCheckpoint
from hyperpod_kit.job.resume import checkpoint_choice

SILENT = 30.0
"""Seconds without a change of a note, after which its node has died or its flush was killed: a note is renewed each
second, or as often as a storage allows that is busy with what the flush writes."""

STALL = 120.0
"""Seconds without a byte moved, after which a flush is not waited for any longer: its storage hangs, or it waits
itself."""

CHECK_INTERVAL = 1.0
SAY = 15.0
"""Seconds between two readings of the notes, and between two lines about them."""


@dataclass
class _NoteObservation:
    """What was seen of one note. `changed`, `moved`: when it last changed, and when bytes were last moved, monotonic.

    `last`: the note as it was found last, None for one that is just being written; `note`: the last readable one.
    """

    last: Optional[FlushNote]
    note: Optional[FlushNote]
    changed: float
    moved: float


class FlushWatch:
    """Remembers how the notes of a root change from one reading to the next."""

    def __init__(self) -> None:
        self._observation_by_name: Dict[str, _NoteObservation] = {}

    def update_and_list_ongoing_flushes(
        self, notes_found: Mapping[str, Optional[FlushNote]], order: Optional[Tuple[int, int]], now: float
    ) -> List[Optional[FlushNote]]:
        """Take in the notes that lie there `now`, and return those of the flushes that go on.

        Only captures newer than `order` count (None: all do). A note that was never readable yet is returned as None.
        """
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
        """Return the names of notes that are not renewed any more."""
        return [name for name, observation in self._observation_by_name.items() if now - observation.changed >= SILENT]


def needs_nothing_newer(choice: checkpoint_choice.Choice) -> bool:
    """Return whether the choice stands, whatever newer captures there are.

    After a step back nothing is taken from memory either, and another framework's trainer captures nothing there.
    """
    return choice.stepped_back or choice.kind != checkpoint_choice.KIT_KIND


Notes = Callable[[List[str]], Mapping[str, Optional[FlushNote]]]
"""notes(stale) -> the notes that lie there once the stale ones are removed, by name. Raises OSError."""


def make_note_reader(root: str) -> Notes:
    """Return the `notes` of `choose_after_flushes_end` for a root."""

    def read(stale: List[str]) -> Mapping[str, Optional[FlushNote]]:
        store = open_store(root)
        for name in stale:
            flush_note.try_remove(store, name)
        note_by_name = flush_note.read_all(store)
        if not note_by_name:
            return {}
        rollback_records = rollbacks.read_active_records(store)
        return {
            name: note
            for name, note in note_by_name.items()
            if note is None or not _is_excluded_by_rollback(rollback_records, note)
        }

    return read


def _is_excluded_by_rollback(active_records: Sequence[rollbacks.RollbackRecord], note: FlushNote) -> bool:
    """Return whether the run has gone back to before that capture, or begun anew since: it is not waited for then."""
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
    """Wait until nothing newer is on its way to storage, `limit` seconds at most, and return the choice.

    Raises what its parts raise, and NoValidCheckpoint where a flush still goes on and there is no checkpoint to begin
    from: step 0 would be older than what a node still saves.
    """
    begin, reported_at = time.monotonic(), 0.0
    watch = FlushWatch()
    previous_orders: Optional[Set[Optional[Tuple[int, int]]]] = None
    stale: List[str] = []
    choice = choose()
    while not needs_nothing_newer(choice):
        note_by_name, now = notes(stale), time.monotonic()
        going = watch.update_and_list_ongoing_flushes(note_by_name, choice.order, now)
        stale = watch.silent(now)
        orders = {_order_or_none(note) for note in going}
        if previous_orders is not None and orders != previous_orders:
            # One is on storage, or has ended otherwise.
            choice, previous_orders = choose(), None
            continue
        if not going:
            if stale:
                notes(stale)
            break
        if now - begin >= limit:
            report_line(f"{words_of(going)}; continuing without them after {limit:g} s")
            if choice.source == checkpoint_choice.NONE:
                raise NoValidCheckpoint(root, [("nothing yet", words_of(going))], hint=f"ls -l {root}/flushes")
            break
        if previous_orders is None or now - reported_at >= SAY:
            reported_at = now
            report_line(f"{words_of(going)}; waiting up to {limit - (now - begin):.0f} s more")
        previous_orders = orders
        pause(CHECK_INTERVAL)
    return choice


def _order_or_none(note: Optional[FlushNote]) -> Optional[Tuple[int, int]]:
    if note is None:
        return None
    return note.order


def words_of(going: List[Optional[FlushNote]]) -> str:
    """Return a sentence about the captures that are on their way to storage."""
    readable_notes = [note for note in going if note is not None]
    if not readable_notes:
        return "a node is still flushing captures from memory to storage"
    newest = max(readable_notes, key=lambda note: note.order)
    moved, size = sum(note.moved for note in readable_notes), sum(note.bytes for note in readable_notes)
    hosts = sorted({note.host for note in readable_notes})
    subject_and_verb = ", ".join(hosts[:3])
    if len(hosts) > 3:
        subject_and_verb += f" and {len(hosts) - 3} more"
    if len(hosts) > 1:
        subject_and_verb += " still bring"
    else:
        subject_and_verb += " still brings"
    return (
        f"{subject_and_verb} step {newest.step} (seq {newest.seq}) of job "
        f"{newest.job or '?'} from memory to storage, {moved / 1e9:.1f} of {size / 1e9:.1f} GB"
    )
