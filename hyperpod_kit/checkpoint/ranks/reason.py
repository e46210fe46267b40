"""Why something could not be read or filled, and what that says about the checkpoint.

Whether a checkpoint gets a tombstone, or an older one may be taken, depends on the verdict. It is a value of its own
and not a type of text: a reason that was formatted is only words, and no function takes words for a verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from hyperpod_kit.checkpoint.ranks import wire_values


@wire_values.register_type
class Verdict(enum.Enum):
    """What a failure says about the checkpoint."""

    DAMAGED = "damaged"
    """Proof: bytes were read, and they are not the bytes that were sealed."""
    UNREAD = "unread"
    """Nothing: storage failed, and may give up the same bytes later."""
    UNFILLED = "unfilled"
    """Nothing to do with the checkpoint: this rank's memory could not take what was read."""
    UNUSABLE = "unusable"
    """It cannot be used, and that is no proof of damage: a file is missing, or does not fit the others."""


@wire_values.register_type
class Reason(NamedTuple):
    """Words for people, and the verdict."""

    text: str
    verdict: Verdict = Verdict.UNUSABLE

    def __str__(self) -> str:
        return self.text

    def with_rank_prefix(self, rank: int) -> Reason:
        """Return the reason with the number of the rank in front of its text."""
        return self._replace(text=f"rank {rank}: {self.text}")


def reason_or_none(outcome: object) -> Reason | None:
    """Return `outcome` if it is a Reason in place of a value, else None."""
    if isinstance(outcome, Reason):
        return outcome
    return None


def first_reason_with_rank(reasons: Sequence[Reason | None]) -> Reason | None:
    """Return the reason of the first rank that has one, with its number where there are several ranks;
    None when none has."""
    for rank, reason in enumerate(reasons):
        if reason is not None:
            if len(reasons) > 1:
                return reason.with_rank_prefix(rank)
            return reason
    return None
