"""Rank 0's agent counts the saves that come to nothing, and leaves word where others look.

In shared memory (failure_note) at the end of every save; on the root (failure_rows) at the 1st, 2nd, 4th, 8th in a row.
Neither is ever an error: what cannot be said there, the trainer says.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Set

from hyperpod_kit.checkpoint.agent.leader import failure_rows
from hyperpod_kit.checkpoint.agent.process.agent_events import LossNoteResult
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.worker import Worker
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.reports.save_failures import Tally
from hyperpod_kit.checkpoint.agent.shm import failure_note, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.records import identity

_REMEMBERED = 1024
_MOST_ON_ROOT = 100
"""Words on the root of one start, but for a row that is longer than all before it: saves that come to nothing by turns
must not fill the root."""


class RootFailureLog:
    """A row of failure_rows each. `is_retry_due`: the last one could not be left."""

    def __init__(
        self, run_identity: identity.RunIdentity, storage: Storage, chores: Worker, clock: Callable[[], float]
    ) -> None:
        self._run_identity, self._storage, self._chores, self._clock = run_identity, storage, chores, clock
        self._written = self._longest = 0
        self.is_retry_due = False

    def submit_row_within_limit(self, key: Key, failures_in_a_row: int, reason: str) -> None:
        """Have a worker write a row to the root: `count` saves in a row have failed, `key` the last of them.

        Beyond _MOST_ON_ROOT rows only one of a longer series is written.
        """
        if self._written >= _MOST_ON_ROOT and failures_in_a_row <= self._longest:
            return
        self._written += 1
        self._longest = max(self._longest, failures_in_a_row)
        row = failure_rows.Row(key[0], key[1], failures_in_a_row, reason, self._clock())
        self._chores.submit(
            LossNoteResult,
            key,
            lambda: failure_rows.create_row_file_on_owned_root(self._storage.store, self._run_identity, row),
        )


class FailureCounter:
    """The saves of this start (`incarnation`), in the order in which their ends become known. `clock`: Unix seconds."""

    def __init__(
        self,
        folder: str,
        root: str,
        run_identity: identity.RunIdentity,
        incarnation: str,
        storage: Storage,
        chores: Worker,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.join(
            folder, shm_slots.failure_note_file_name(shm_paths.node_uid(), shm_slots.run_hash(run_identity.run_id), 0)
        )
        self._root, self._run, self._incarnation = root, run_identity.run, incarnation
        self._root_log = RootFailureLog(run_identity, storage, chores, clock)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._tally = Tally(clock)
        self._ended: Set[int] = set()
        self._last_reason = ""

    def count_ended_save_and_write_note(self, order: Order) -> None:
        """Count the end of a save that this order of the coordinator tells; write the note, and a row when it is
        due."""
        kind, key, note, _ = order
        if key is None or key[2] != self._incarnation or key[1] in self._ended:
            return
        if kind is OrderKind.COMMITTED:
            name = layout.parse_checkpoint_id(note)
            if name is None:
                return
            self._tally.record_durable_and_check_recovery(key[1], name.step)
        elif kind in (OrderKind.FAILED, OrderKind.REFUSED, OrderKind.DROPPED):
            self._last_reason = note
            if self._tally.record_failure_and_check_report_due(key[1], note) or (
                self._root_log.is_retry_due and self._tally.in_a_row
            ):
                self._root_log.submit_row_within_limit(key, self._tally.in_a_row, note)
        else:
            return
        self._ended = {seq for seq in self._ended if seq > key[1] - _REMEMBERED} | {key[1]}
        self._write_note()

    def on_row_written(self, failure: str) -> None:
        """Record whether the row could be written to the root; if not, the next failed save writes one."""
        self._root_log.is_retry_due = bool(failure)

    def _write_note(self) -> None:
        durable = self._tally.durable
        with contextlib.suppress(OSError):
            failure_note.write(
                self._path,
                failure_note.Note(
                    self._run,
                    self._root,
                    self._job,
                    durable.step if durable is not None else None,
                    durable.at if durable is not None else None,
                    self._tally.in_a_row,
                    self._last_reason if self._tally.in_a_row else "",
                ),
            )
