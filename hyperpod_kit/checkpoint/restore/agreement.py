"""What all ranks do for one candidate of a restore: each does its part, and all hear what came of everybody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.ranks.collectives import Ranks, first_problem_with_rank
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict, first_reason_with_rank, reason_or_none
from hyperpod_kit.checkpoint.restore.candidate_rejected import CandidateRejected
from hyperpod_kit.errors import CheckpointError, DigestUnavailable

Local = TypeVar("Local")
Shared = TypeVar("Shared")


class Agreement:
    """The ranks of this run about one checkpoint. Every method is called by all ranks, and raises the same on
    all of them.

    What a rank's work gives stays on that rank, however large it is. Only what the `_and_share` methods are given to
    tell goes to all.
    """

    def __init__(self, ranks: Ranks, checkpoint_id: str) -> None:
        self._ranks = ranks
        self._checkpoint_id = checkpoint_id

    # --- whether the checkpoint is good -------------------------------------------------------------------------

    def run_or_reject(self, work: Callable[[], Local]) -> Local:
        """Run `work` on every rank and return this rank's result; a collective.

        Raises CandidateRejected, on all ranks, when the work of one rank finds the checkpoint bad;
        DigestUnavailable, CheckpointError.
        """
        return self.run_and_gather_or_reject(lambda: (work(), None))[0]

    def run_and_gather_or_reject(self, work: Callable[[], tuple[Local, Shared]]) -> tuple[Local, list[Shared]]:
        """Run `work`, which returns (what stays on this rank, what to share), and return this rank's own
        part and what each rank shared; a collective.

        Raises as `run_or_reject`.
        """
        given: tuple[Local, Shared] | Reason | DigestUnavailable
        try:
            given = reshard.error_as_reason(work)
        except DigestUnavailable as err:
            given = err
        if isinstance(given, (Reason, DigestUnavailable)):
            gathered = self._ranks.gather((given, None))
        else:
            gathered = self._ranks.gather((None, given[1]))
        self.raise_first_problem([problem for problem, _ in gathered])
        assert not isinstance(given, (Reason, DigestUnavailable)), "agreed, so this rank's part is valid too"
        return given[0], [shared for _, shared in gathered]

    def raise_first_problem(self, problems: Sequence[Reason | DigestUnavailable | None]) -> None:
        """Raise the first of all ranks' `problems`, the same on every rank; return when there is none.

        Raises CandidateRejected, DigestUnavailable, CheckpointError when the fault is not the
        checkpoint's.
        """
        for problem in problems:
            if isinstance(problem, DigestUnavailable):
                raise problem
        reasons = [reason_or_none(problem) for problem in problems]
        unfilled = first_reason_with_rank([_reason_if_memory_not_filled(reason) for reason in reasons])
        if unfilled is not None:
            raise self.misfit_error(unfilled.text)
        first = first_reason_with_rank(reasons)
        if first is not None:
            raise CandidateRejected(first, next(rank for rank, reason in enumerate(reasons) if reason is not None))

    # --- whether the state is what it was saved from ------------------------------------------------------------

    def run_or_raise_misfit(self, work: Callable[[], Local]) -> Local:
        """Run `work` on every rank and return this rank's result; a collective.

        Raises CheckpointError, on all ranks, when the work of one rank fails: its part of the state
        does not fit the checkpoint.
        """
        return self.run_and_gather_or_raise_misfit(lambda: (work(), None))[0]

    def run_and_gather_or_raise_misfit(self, work: Callable[[], tuple[Local, Shared]]) -> tuple[Local, list[Shared]]:
        """Run `work`, which returns (what stays on this rank, what to share), and return this rank's own
        part and what each rank shared; a collective.

        Raises as `run_or_raise_misfit`.
        """
        given: tuple[Local, Shared] | None = None
        problem, hint, to_share = None, None, None
        try:
            given = work()
            to_share = given[1]
        except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
            problem = f"{type(err).__name__}: {err}"
            if isinstance(err, CheckpointError):
                problem = str(err)
            hint = getattr(err, "hint", None)
        gathered = self._ranks.gather((problem, hint, to_share))
        problem = first_problem_with_rank([rank_problem for rank_problem, _, _ in gathered])
        if problem is not None:
            raise self.misfit_error(
                problem, next((text for rank_problem, text, _ in gathered if rank_problem is not None), None)
            )
        assert given is not None, "no rank has a problem, so this one has none"
        return given[0], [shared for _, _, shared in gathered]

    def misfit_error(self, problem: str, hint: str | None = None) -> CheckpointError:
        """Return the error that says that the state does not fit the checkpoint."""
        return CheckpointError(
            f"{self._checkpoint_id} does not fit this state: {problem}",
            hint=hint or "train with the code that saved it, or use another root",
        )


def _reason_if_memory_not_filled(reason: Reason | None) -> Reason | None:
    """Return `reason` if its verdict is that memory could not be filled, else None."""
    if reason is not None and reason.verdict is Verdict.UNFILLED:
        return reason
    return None
