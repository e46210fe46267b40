"""Append the rows from which the budget is counted, whatever storage does meanwhile.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.run.interruptions import Interruptions
from hyperpod_kit.job.step.storage import CheckpointRoot

CACHE_SECONDS = 2.0
"""Seconds in which a mount that has gone may still answer from its cache."""

MAX_FAILURES = 3
"""Tries to append where the checkpoint root answers."""


class BudgetRows:
    """Writes the rows of one run of the batch script."""

    def __init__(self, ledger: Ledger, storage: CheckpointRoot, signals: Signals, interruptions: Interruptions) -> None:
        self._ledger = ledger
        self._storage = storage
        self._signals = signals
        self._interruptions = interruptions
        self._failures = 0

    def append(self, event: str, **fields: object) -> None:
        """Append a row, with as many tries as that takes. Raises JobError, RunStopped, RunHandedBack."""
        while not self.try_append(event, **fields):
            pass

    def try_append(self, event: str, **fields: object) -> bool:
        """Append a row; return False where that failed and may succeed now.

        What was read of the root shortly before may be wrong then. Raises JobError, RunStopped, RunHandedBack.
        """
        try:
            self._ledger.append(event, **fields)
        except JobError:
            self._failures += 1
            self._signals.pause_until_stop_or_warning(CACHE_SECONDS)
            if self._storage.outlast():
                self._failures = 0
            self._interruptions.raise_if_signalled("waiting for storage")
            if self._failures >= MAX_FAILURES or not self._storage.answers():
                raise
            return False
        self._failures = 0
        return True
