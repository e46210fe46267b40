"""What all ranks do for one candidate of a restore: each does its part, and all hear what came of everybody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hyperpod_kit.checkpoint.collectives import Ranks, first_problem
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.reason import Reason, Verdict, first_reason
from hyperpod_kit.checkpoint.rejected import Rejected
from hyperpod_kit.errors import CheckpointError, DigestUnavailable

Own = TypeVar("Own")
Told = TypeVar("Told")


class Agreement:
    """The ranks of this run about the attempt `attempt`. Every method is called by all ranks, and raises the same on
    all of them.

    What a rank's work gives stays on that rank, however large it is. Only what the `_and_tell` methods are given to
    tell goes to all.
    """

    def __init__(self, ranks: Ranks, attempt: str) -> None:
        self._ranks = ranks
        self._attempt = attempt

    # --- whether the checkpoint is good -------------------------------------------------------------------------

    def prove(self, work: Callable[[], Own]) -> Own:
        """What this rank's part of the checkpoint gave, where every rank's part is good. Raises Rejected,
        DigestUnavailable, CheckpointError."""
        return self.prove_and_tell(lambda: (work(), None))[0]

    def prove_and_tell(self, work: Callable[[], tuple[Own, Told]]) -> tuple[Own, list[Told]]:
        """The same, for work that gives (what stays here, what to tell): the former, and what each rank told."""
        given: tuple[Own, Told] | Reason | DigestUnavailable
        try:
            given = reshard.guarded(work)
        except DigestUnavailable as err:
            given = err
        mine = (given, None) if isinstance(given, (Reason, DigestUnavailable)) else (None, given[1])
        everybody = self._ranks.gather(mine)
        self.settle([problem for problem, _ in everybody])
        assert not isinstance(given, (Reason, DigestUnavailable)), "settled, so this rank's part is good too"
        return given[0], [told for _, told in everybody]

    def settle(self, problems: Sequence[Reason | DigestUnavailable | None]) -> None:
        """Raise the first of all ranks' `problems`, on every rank; return when there is none.

        Raises Rejected, DigestUnavailable, CheckpointError when the fault is not the checkpoint's.
        """
        for found in problems:
            if isinstance(found, DigestUnavailable):
                raise found
        reasons = [found if isinstance(found, Reason) else None for found in problems]
        unfilled = first_reason([why if why and why.verdict is Verdict.UNFILLED else None for why in reasons])
        if unfilled is not None:
            raise self.unfit(unfilled.words)
        first = first_reason(reasons)
        if first is not None:
            raise Rejected(first, next(rank for rank, why in enumerate(reasons) if why is not None))

    # --- whether the state is what it was saved from ------------------------------------------------------------

    def fit(self, work: Callable[[], Own]) -> Own:
        """What this rank's part of the state gave. Raises CheckpointError when one rank's part fails."""
        return self.fit_and_tell(lambda: (work(), None))[0]

    def fit_and_tell(self, work: Callable[[], tuple[Own, Told]]) -> tuple[Own, list[Told]]:
        """The same, for work that gives (what stays here, what to tell): the former, and what each rank told."""
        given: tuple[Own, Told] | None = None
        problem, hint = None, None
        try:
            given = work()
        except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
            problem = str(err) if isinstance(err, CheckpointError) else f"{type(err).__name__}: {err}"
            hint = getattr(err, "hint", None)
        everybody = self._ranks.gather((problem, hint, given[1] if given is not None else None))
        problem = first_problem([found for found, _, _ in everybody])
        if problem is not None:
            raise self.unfit(problem, next((text for found, text, _ in everybody if found is not None), None))
        assert given is not None, "no rank has a problem, so this one has none"
        return given[0], [told for _, _, told in everybody]

    def unfit(self, problem: str, hint: str | None = None) -> CheckpointError:
        """The state is not what the attempt was saved from."""
        return CheckpointError(
            f"{self._attempt} does not fit this state: {problem}",
            hint=hint or "train with the code that saved it, or use another root",
        )
