"""Chooses the checkpoint that the next attempt resumes from, and reads what the ranks of the last attempt resumed from.

The choice costs a listing and a manifest, whatever the size of the checkpoint: the ranks prove every byte while they
restore, go back together where they must, and leave a verdict (slurm/verdict.py).
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Dict, Optional, Sequence

from hyperpod_kit.errors import DigestUnavailable, GaveUp, NotEnoughSharedMemory, NoValidCheckpoint, StorageUnreadable
from hyperpod_kit.job.decide.budget import PoisonCheckpoint, count_spent_budget, exhausted
from hyperpod_kit.job.decide.decision import UnreadableCheckpoint
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.records.ledger import Row
from hyperpod_kit.job.resume import checkpoint_choice, launches
from hyperpod_kit.job.resume.patience import Patience
from hyperpod_kit.job.resume.proving_step import ProvingStep
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict

NOTHING_TO_TRY = (NoValidCheckpoint.__name__, DigestUnavailable.__name__, NotEnoughSharedMemory.__name__)
"""Errors of a restore in which another start of the same ranks would end again."""


class Resumption:
    """The choices of one run of `job run`. `chooser` checks structure only, `prover` reads every byte."""

    def __init__(
        self,
        options: RunOptions,
        patience: Patience,
        proving: ProvingStep,
        chooser: Optional[checkpoint_choice.Chooser] = None,
        prover: Optional[checkpoint_choice.Chooser] = None,
    ) -> None:
        self._options = options
        self._patience = patience
        self._chooser = chooser or partial(checkpoint_choice.newest_complete_kit_else_foreign, prove=proving.prove)
        self._prover = prover or partial(checkpoint_choice.newest_verified_kit_else_foreign, prove=proving.prove)
        self._last_verdict: Optional[RestoreVerdict] = None
        self._unreadable: Dict[str, str] = {}

    def choose_verifying_bytes_if_needed(
        self, rows: Sequence[Row], poison: Optional[PoisonCheckpoint], policy: RetryPolicy, restart: int
    ) -> checkpoint_choice.Choice:
        """Return the choice for the next attempt; bytes are read only where something depends on them.

        After stepping back from a checkpoint the one before it must be known to be good, and a new one renews a budget
        that is used up only when it is valid. Raises as Patience.choice.
        """
        passed_over: Dict[str, str] = {}
        if poison:
            passed_over[poison.name] = poison.reason
        if not poison and not self._options.prove_bytes:
            choice = self._choose(self._chooser, passed_over)
            is_spent_if_valid = exhausted(policy, count_spent_budget(rows, choice.order, restart))
            is_spent_otherwise = exhausted(policy, count_spent_budget(rows, None, restart))
            if choice.kind != checkpoint_choice.KIT_KIND or is_spent_if_valid or not is_spent_otherwise:
                return choice
        return self._choose(self._prover, passed_over)

    def _choose(self, chooser: checkpoint_choice.Chooser, passed_over: Dict[str, str]) -> checkpoint_choice.Choice:
        return self._patience.choose_after_unfinished_flushes(
            lambda: self._patience.choice(chooser, passed_over, self._unreadable)
        )

    def read_and_remember_verdicts(self, attempt: str) -> Sequence[RestoreVerdict]:
        """Return the verdicts of an attempt's ranks, in the order of its launches; the last one is remembered."""
        verdicts: Sequence[RestoreVerdict] = ()
        with contextlib.suppress(OSError):
            verdicts = verdict.read_last_verdict_per_launch(self._options.state, attempt)
            if not verdicts:
                verdicts = launches.foreign_choices_of_later_launches(self._options.state, attempt)
        self._last_verdict = None
        if verdicts:
            self._last_verdict = verdicts[-1]
        return verdicts

    def recast_crash_as_storage_if_unreadable(self, outcome: Outcome) -> Outcome:
        """Return the outcome as a failure of storage if the ranks could not read what storage listed, else as it is."""
        is_unread = self._last_verdict is not None and self._last_verdict.error == StorageUnreadable.__name__
        if not is_unread or not outcome.kind.costs_budget:
            return outcome
        return outcome._replace(kind=OutcomeKind.STORAGE)

    def nothing_left(self, outcome: Outcome) -> Optional[GaveUp]:
        """Return the error of a run whose ranks found nothing that can be trusted or checked, None of any other run."""
        last = self._last_verdict
        if not outcome.kind.costs_budget or last is None or last.error not in NOTHING_TO_TRY:
            return None
        message = f"{last.error}: {last.why}"
        if last.error == NotEnoughSharedMemory.__name__:
            return GaveUp(message, hint="see the hint in the rank's own error above")
        cause = NoValidCheckpoint(self._options.root, last.rejected)
        error = GaveUp(message, hint=cause.hint)
        error.__cause__ = cause
        return error

    @property
    def none_was_valid(self) -> bool:
        """Whether the ranks found checkpoints, but none that they could trust."""
        return self._last_verdict is not None and self._last_verdict.error == NoValidCheckpoint.__name__

    @property
    def unreadable(self) -> Sequence[str]:
        """The checkpoints that are passed over because ranks of two runs could not read them."""
        return tuple(self._unreadable)

    def find_unreadable(self, rows: Sequence[Row], restart: int) -> Optional[UnreadableCheckpoint]:
        """Return the checkpoint that cannot be read while its root and its node can, or None.

        The ranks of an earlier run, which may have had other nodes, could not read it either. It is returned once:
        where passing over it has not helped, the job is handed back.
        """
        verdict = self._last_verdict
        if verdict is None or verdict.error != StorageUnreadable.__name__ or not verdict.rejected:
            return None
        name, reason = verdict.rejected[-1]
        if name in self._unreadable or not _was_unreadable_before(rows, restart, name):
            return None
        return UnreadableCheckpoint(name, reason)

    def pass_over(self, checkpoint: UnreadableCheckpoint) -> None:
        """Leave a checkpoint out of the next choices."""
        self._unreadable[checkpoint.name] = checkpoint.reason


def _was_unreadable_before(rows: Sequence[Row], restart: int, name: str) -> bool:
    """Return whether ranks of an earlier run of the batch script could not read this checkpoint."""
    for row in rows:
        is_unreadable = row.get("event") == "restored" and row.get("error") == StorageUnreadable.__name__
        if not is_unreadable or int(row.get("restart") or 0) >= restart:
            continue
        if any(rejected.get("attempt") == name for rejected in row.get("rejected") or []):
            return True
    return False
