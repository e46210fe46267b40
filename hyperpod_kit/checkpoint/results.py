"""What `Manager.restore` found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Restored:
    """The state is that of `step`, the last completed one; go on with `next_step`.

    `tier` is `memory` (the node's shared memory), `local` (its disk) or `storage` (the root), joined by `+` where ranks
    differ; `rejected` names every newer candidate and
    why it was not taken. `line`: the epoch of the start from scratch that it descends from, 0 when it does not say.
    """

    step: int
    epoch: int
    seq: int
    attempt: str
    tier: str
    seconds: float
    bytes: int
    rejected: tuple[tuple[str, str], ...] = ()
    line: int = 0

    @property
    def next_step(self) -> int:
        return self.step + 1


@dataclass(frozen=True)
class Peeked:
    """What `Manager.restore` would try first: what `extra` of rank 0 holds (None in the place of a tensor), `metrics`.

    Nothing was restored, and of the tensors nothing was read: the restore may still go back to an older one.
    """

    step: int
    epoch: int
    seq: int
    attempt: str
    extra: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    rejected: tuple[tuple[str, str], ...] = ()

    @property
    def next_step(self) -> int:
        return self.step + 1


@dataclass(frozen=True)
class Fresh:
    """Nothing was ever committed: the state is untouched, training begins at step 0."""

    seconds: float = 0.0
    rejected: tuple[tuple[str, str], ...] = ()
    next_step: int = 0
