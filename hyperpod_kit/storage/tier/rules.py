"""Which checkpoints go: a pure choice over facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from hyperpod_kit.errors import HyperpodKitError, UsageError

DAY = 86400.0


class TierError(HyperpodKitError):
    """A checkpoint could not be moved; it is where it was."""


@dataclass(frozen=True)
class TierRule:
    """What may go.

    `above`, `until`: shares of the file system, 0 to 1: nothing goes before it is fuller than `above`, and then the
    oldest until it is no fuller than `until`. `older_than`: seconds since it was saved. `keep`: newest valid ones of
    each run that never go.
    """

    above: float | None = None
    until: float | None = None
    older_than: float | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        if self.above is None and self.older_than is None:
            raise UsageError("a rule needs a condition", hint="--above 80 --until 70, or --older-than 30d")
        if self.above is not None and not 0 <= self.target_share <= self.above <= 1:
            raise UsageError(
                f"--above {self.above:.0%} --until {self.target_share:.0%}: expected 0 <= until <= above <= 100"
            )

    @property
    def target_share(self) -> float:
        """Return `until`, where it was not given: ten percentage points below `above`."""
        if self.until is not None:
            return self.until
        return max(0.0, (self.above or 0.0) - 0.1)


@dataclass(frozen=True)
class TierItem:
    """A valid checkpoint that retention would let go. `time`: Unix seconds when it was saved, None when unknown;
    `size`: bytes on disk; `pool`: the file system that it is on."""

    root: str
    attempt: str
    time: float | None
    size: int
    pool: str


@dataclass(frozen=True)
class Pool:
    """A file system, in bytes."""

    name: str
    used: int
    total: int


@dataclass(frozen=True)
class TierChoice:
    """What goes. `go`: oldest first; `short`: pool -> bytes by which it stays fuller than `until` after all that."""

    go: tuple[TierItem, ...]
    short: dict[str, int]


def choose_checkpoints_to_remove(
    items: Sequence[TierItem], pools: Sequence[Pool], rule: TierRule, now: float
) -> TierChoice:
    """Choose what goes by `rule`. What is not older than `older_than`, or of unknown age where that is asked, stays."""
    go: list[TierItem] = []
    short: dict[str, int] = {}
    for pool in pools:
        ready = [item for item in items if item.pool == pool.name and _is_old_enough(item, rule, now)]
        ready.sort(key=lambda item: (item.time is not None, item.time or 0.0, item.root, item.attempt))
        if rule.above is None:
            go += ready
            continue
        if pool.used <= rule.above * pool.total:
            continue
        over = pool.used - rule.target_share * pool.total
        for item in ready:
            if over <= 0:
                break
            go.append(item)
            over -= item.size
        if over > 0:
            short[pool.name] = round(over)
    return TierChoice(tuple(go), short)


def _is_old_enough(item: TierItem, rule: TierRule, now: float) -> bool:
    return rule.older_than is None or (item.time is not None and now - item.time > rule.older_than)
