"""Exceptions with which a run of the batch script ends before its time, and the class that raises them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import NoReturn

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.run_end import RunEnd
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.step.scheduler import Scheduler
from hyperpod_kit.slurm.environment import JobEnvironment


class RunStopped(Exception):
    """Slurm or a user ended this run."""


class RunHandedBack(Exception):
    """This run cannot go on; the job goes back into the queue. `kind` is the outcome that leads to it."""

    def __init__(self, kind: OutcomeKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class RunBeginsAgain(Exception):
    """This run cannot go on, and nothing but `job run` itself starts the next one."""


class Interruptions:
    """Turns signals that come while no step runs into exceptions, and records why a run was stopped."""

    def __init__(
        self, signals: Signals, scheduler: Scheduler, job: JobEnvironment, ledger: Ledger, report: JobReport
    ) -> None:
        self._signals = signals
        self._scheduler = scheduler
        self._job = job
        self._ledger = ledger
        self._report = report

    def raise_if_signalled(self, activity: str) -> None:
        """Raise RunStopped after TERM or INT, RunHandedBack after USR1. `activity` is what was going on meanwhile."""
        if self._signals.stop:
            nodes = self._scheduler.query_allocation(self._job)
            self.stop(self._scheduler.explain_run_end(nodes, self._job.restart, self._signals.stop))
        if self._signals.warned:
            raise RunHandedBack(OutcomeKind.PREEMPTED, f"warned by USR1 while {activity}")

    def stop(self, end: RunEnd) -> NoReturn:
        """Record and report why this run ends, and raise RunStopped."""
        self.record("stopped", why=end.explanation)
        message = f"this run {end.explanation}"
        if end.kind is OutcomeKind.CANCELLED and self._scheduler.has_queue:
            message += "; a cancelled job is never requeued"
        self._report("stopped", message, why=end.explanation, kind=end.kind.value)
        raise RunStopped

    def record(self, event: str, **fields: object) -> None:
        """Append a row that only people read: the end of this run does not depend on it."""
        try:
            self._ledger.append(event, **fields)
        except JobError as err:
            self._report("storage", f"{err.message}: `job status` cannot show why this run ended")
