"""What the next attempt is told to resume from, and what the ranks of the one before made of what they were told.

The choice costs a listing and a manifest, whatever the size of the checkpoint: the ranks prove every byte while they
restore, go back together where they must, and leave a verdict (slurm/verdict.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Dict, Optional, Sequence

from hyperpod_kit.errors import DigestUnavailable, GaveUp, NotEnoughSharedMemory, NoValidCheckpoint, StorageUnreadable
from hyperpod_kit.job import checkpoint_choice, launches
from hyperpod_kit.job.ledger import Row
from hyperpod_kit.job.options import RunOptions
from hyperpod_kit.job.outcome import Outcome
from hyperpod_kit.job.patience import Patience
from hyperpod_kit.job.proving_step import ProvingStep
from hyperpod_kit.job.retry_policy import CRASHES, Poison, RetryPolicy, exhausted, spent
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict

NOTHING_TO_TRY = (NoValidCheckpoint.__name__, DigestUnavailable.__name__, NotEnoughSharedMemory.__name__)
"""Errors of a restore in which another start of the same ranks would end again."""


class Resumption:
    """One run's choices. `chooser` looks at structure, `prover` reads every byte."""

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
        self._chooser = chooser or partial(checkpoint_choice.newest_whole, prove=proving.prove)
        self._prover = prover or partial(checkpoint_choice.newest_valid, prove=proving.prove)
        self._told: Optional[RestoreVerdict] = None
        self._unreadable: Dict[str, str] = {}

    def choice(
        self, rows: Sequence[Row], bad: Optional[Poison], policy: RetryPolicy, restart: int
    ) -> checkpoint_choice.Choice:
        """Bytes are read only where something hangs on them: who steps back from a checkpoint must know the one before
        it to be good, and a new one renews a budget that is used up only when it is valid. Raises as Patience.choice.
        """
        passed = {bad.name: bad.why} if bad else {}
        if not bad and not self._options.prove_bytes:
            choice = self._patience.flushes(lambda: self._patience.choice(self._chooser, passed, self._unreadable))
            renewed, kept = (exhausted(policy, spent(rows, order, restart)) for order in (choice.order, None))
            if choice.kind != checkpoint_choice.OURS or renewed or not kept:
                return choice
        return self._patience.flushes(lambda: self._patience.choice(self._prover, passed, self._unreadable))

    def verdicts(self, attempt: str) -> Sequence[RestoreVerdict]:
        """What the ranks of an attempt said, in the order of its launches; the last one is kept in mind."""
        told: Sequence[RestoreVerdict] = ()
        with contextlib.suppress(OSError):
            told = verdict.read_last_verdict_per_launch(self._options.state, attempt) or launches.taken(
                self._options.state, attempt
            )
        self._told = told[-1] if told else None
        return told

    def seen_by_ranks(self, outcome: Outcome) -> Outcome:
        """A failure that was storage's: the ranks could not read what storage listed."""
        unread = self._told is not None and self._told.error == StorageUnreadable.__name__
        return replace(outcome, kind="storage") if unread and outcome.kind in CRASHES else outcome

    def nothing_left(self, outcome: Outcome) -> Optional[GaveUp]:
        """The error of a run whose ranks found nothing that can be trusted or checked."""
        if outcome.kind not in CRASHES or self._told is None or self._told.error not in NOTHING_TO_TRY:
            return None
        if self._told.error == NotEnoughSharedMemory.__name__:
            return GaveUp(
                f"{self._told.error}: {self._told.why}", hint="what to type is in the rank's own error, above"
            )
        cause = NoValidCheckpoint(self._options.root, self._told.rejected)
        given = GaveUp(f"{self._told.error}: {self._told.why}", hint=cause.hint)
        given.__cause__ = cause
        return given

    @property
    def none_was_valid(self) -> bool:
        """Whether the ranks found checkpoints, and none that they could trust."""
        return self._told is not None and self._told.error == NoValidCheckpoint.__name__

    @property
    def unreadable(self) -> Sequence[str]:
        """The checkpoints that are passed over because ranks of two runs could not read them."""
        return tuple(self._unreadable)

    def pass_over_unreadable(self, rows: Sequence[Row], restart: int) -> bool:
        """Whether the next choice is an older one, because it is this checkpoint that cannot be read and not its node
        or the root: the ranks of an earlier run, which may have had other nodes, could not read it either. Once: where
        passing over it has not helped, the job is handed back."""
        if self._told is None or self._told.error != StorageUnreadable.__name__ or not self._told.rejected:
            return False
        name, why = self._told.rejected[-1]
        before = any(
            row.get("event") == "restored"
            and row.get("error") == StorageUnreadable.__name__
            and int(row.get("restart") or 0) < restart
            and any(one.get("attempt") == name for one in row.get("rejected") or [])
            for row in rows
        )
        if not before or name in self._unreadable:
            return False
        self._unreadable[name] = why
        return True
