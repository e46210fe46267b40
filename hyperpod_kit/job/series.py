"""What a running job says of itself to the node's metrics: kept from what `job run` reports, and gone with it."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence

from hyperpod_kit.checkpoint.agent import job_note, places
from hyperpod_kit.checkpoint.agent.job_note import HeldNote, JobNote
from hyperpod_kit.errors import JobError
from hyperpod_kit.job import ledger, life, timeline
from hyperpod_kit.job.outcome import CLASSES

_ROWS = ("attempt", "restored", "ended")
"""Events that are reported with the fields of their rows in the ledger."""


class JobSeries:
    """Told of each event of one run of a batch script. `state`: the directory of the ledger, which knows the runs
    before. Best effort: no job fails for its metrics."""

    def __init__(self, state: str, env: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._env = env
        self._clock = clock
        self._rows: List[ledger.Row] = []
        self._base: ledger.Row = {}
        self._held: Optional[HeldNote] = None

    def __enter__(self) -> JobSeries:
        return self

    def __exit__(self, *error: object) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError, JobError):
            if event == "start" and self._held is None:
                self._begin(fields)
            elif event in _ROWS:
                self._rows.append({**self._base, "t": self._clock(), "event": event, **fields})
            else:
                return
            if self._held is not None:
                self._held.put(note_of(self._base["job"], self._rows, self._clock()))

    def _begin(self, fields: Mapping[str, Any]) -> None:
        job, restart = fields["job"], fields["restart"]
        known = ledger.Ledger(self._state, job, restart, born=life.birth(self._env))
        self._base = {"job": job, "restart": restart}
        self._rows = known.rows()
        folder, uid = places.mine(), places.node_uid()
        job_note.sweep(folder, uid)
        self._held = HeldNote(folder, uid, fields["number"])


def note_of(job: str, rows: Sequence[ledger.Row], now: float) -> JobNote:
    """What is said of a job with these rows in its ledger. `now`: Unix seconds."""
    found = timeline.chain(timeline.of_rows(rows))
    sums = timeline.totals(found, now)
    ran = [one for one in found if one.kind != timeline.NONE]
    runs = ran[-1] if ran and ran[-1].kind == timeline.UNFINISHED else None
    # Whoever may write to the root may have written classes there that are none.
    ends = {kind: sums.kinds[kind] for kind in CLASSES if kind in sums.kinds}
    # Steps that a later attempt did from further back count against this one: no part of its time is less than none.
    goodput = max(0.0, sums.goodput) if sums.goodput is not None else None
    return JobNote(job, sums.attempts, runs.started if runs else None, sums.lost, goodput, ends)
