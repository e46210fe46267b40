"""Rank 0's agent counts the saves that come to nothing, and leaves word where others look.

In shared memory (saves_note) at the end of every save; on the root (lost_rows) at the 1st, 2nd, 4th, 8th in a row.
Neither is ever an error: what cannot be said there, the trainer says.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Set

from hyperpod_kit.checkpoint.agent import lost_rows, places, saves_note, shm_slots
from hyperpod_kit.checkpoint.agent.agent_events import LossNoteResult
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.losses import Tally
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.worker import Worker
from hyperpod_kit.checkpoint.repository import identity, layout

_REMEMBERED = 1024
_ON_ROOT = 100
"""Words on the root of one start, but for a row that is longer than all before it: saves that come to nothing by turns
must not fill the root."""


class WordsOnRoot:
    """A row of lost_rows each. `owed`: the last one could not be left."""

    def __init__(
        self, whose: identity.RunIdentity, storage: Storage, chores: Worker, clock: Callable[[], float]
    ) -> None:
        self._whose, self._storage, self._chores, self._clock = whose, storage, chores, clock
        self._left = self._longest = 0
        self.owed = False

    def leave(self, key: Key, count: int, why: str) -> None:
        """So many saves in a row have come to nothing, `key` the last, unless enough was said."""
        if self._left >= _ON_ROOT and count <= self._longest:
            return
        self._left += 1
        self._longest = max(self._longest, count)
        row = lost_rows.Row(key[0], key[1], count, why, self._clock())
        self._chores.submit(LossNoteResult, key, lambda: lost_rows.leave(self._storage.store, self._whose, row))


class Counted:
    """The saves of this start (`incarnation`), in the order in which their ends become known. `clock`: Unix seconds."""

    def __init__(
        self,
        folder: str,
        root: str,
        whose: identity.RunIdentity,
        incarnation: str,
        storage: Storage,
        chores: Worker,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.join(folder, shm_slots.saves_file(places.node_uid(), shm_slots.run_hash(whose.run_id), 0))
        self._root, self._run, self._incarnation = root, whose.run, incarnation
        self._words = WordsOnRoot(whose, storage, chores, clock)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._tally = Tally(clock)
        self._ended: Set[int] = set()
        self._last = ""

    def ended(self, order: Order) -> None:
        """An order of the coordinator's."""
        kind, key, note, _ = order
        if key is None or key[2] != self._incarnation or key[1] in self._ended:
            return
        if kind is OrderKind.COMMITTED:
            name = layout.parse_attempt(note)
            if name is None:
                return
            self._tally.kept(key[1], name.step)
        elif kind in (OrderKind.FAILED, OrderKind.REFUSED, OrderKind.DROPPED):
            self._last = note
            if self._tally.lost(key[1], note) or (self._words.owed and self._tally.in_a_row):
                self._words.leave(key, self._tally.in_a_row, note)
        else:
            return
        self._ended = {seq for seq in self._ended if seq > key[1] - _REMEMBERED} | {key[1]}
        self._say_here()

    def said(self, why: str) -> None:
        """The root has taken the word, or not; then the next loss says it."""
        self._words.owed = bool(why)

    def _say_here(self) -> None:
        durable = self._tally.durable
        with contextlib.suppress(OSError):
            saves_note.write(
                self._path,
                saves_note.Note(
                    self._run,
                    self._root,
                    self._job,
                    durable.step if durable is not None else None,
                    durable.at if durable is not None else None,
                    self._tally.in_a_row,
                    self._last if self._tally.in_a_row else "",
                ),
            )
