"""What all ranks do for one candidate of a restore: each does its part, and all hear what came of everybody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.ranks import Ranks, first_problem
from hyperpod_kit.checkpoint.rejected import Rejected
from hyperpod_kit.errors import CheckpointError, DigestUnavailable


class Agreement:
    """The ranks of this run about the attempt `attempt`. Every method is called by all ranks, and raises the same on
    all of them."""

    def __init__(self, ranks: Ranks, attempt: str) -> None:
        self._ranks = ranks
        self._attempt = attempt

    def proves(self, work: Callable[[], Any]) -> list[Any]:
        """What each rank's part of the checkpoint gave, where every part is good. Raises Rejected, DigestUnavailable,
        CheckpointError."""
        given: list[Any] = [None]
        problem: str | DigestUnavailable | None = None
        try:
            problem = reshard.guarded(lambda: given.__setitem__(0, work()))
        except DigestUnavailable as err:
            problem = err
        everybody = self._ranks.gather((problem, given[0]))
        self.settle([found for found, _ in everybody])
        return [value for _, value in everybody]

    def settle(self, problems: Sequence[str | DigestUnavailable | None]) -> None:
        """Raise the first of all ranks' `problems`, on every rank; return when there is none.

        Raises Rejected, DigestUnavailable, CheckpointError when the fault is not the checkpoint's.
        """
        for found in problems:
            if isinstance(found, DigestUnavailable):
                raise found
        problem = first_problem([found if isinstance(found, reshard.Fault) else None for found in problems])
        if problem is not None:
            raise self.unfit(problem)
        for rank, found in enumerate(problems):
            if isinstance(found, str):
                raise Rejected(f"rank {rank}: {found}" if self._ranks.world > 1 else found, rank, type(found))

    def fits(self, work: Callable[[], Any]) -> list[Any]:
        """What each rank's part of the state gave. Raises CheckpointError when one of them fails."""
        given: Any = None
        problem, hint = None, None
        try:
            given = work()
        except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
            problem = str(err) if isinstance(err, CheckpointError) else f"{type(err).__name__}: {err}"
            hint = getattr(err, "hint", None)
        everybody = self._ranks.gather((problem, hint, given))
        problem = first_problem([found for found, _, _ in everybody])
        if problem is not None:
            raise self.unfit(problem, next((text for found, text, _ in everybody if found is not None), None))
        return [value for _, _, value in everybody]

    def unfit(self, problem: str, hint: str | None = None) -> CheckpointError:
        """The state is not what the attempt was saved from."""
        return CheckpointError(
            f"{self._attempt} does not fit this state: {problem}",
            hint=hint or "train with the code that saved it, or use another root",
        )
