"""Which checkpoints are worth keeping: policies as plain data, which combine with | and &.

    Latest(3) | EverySteps(5000) | Best("val_loss", 2, mode="min")

A policy sees valid committed checkpoints only, newest first, and names those that it keeps. What no policy may touch
(the newest, what is pinned or being read) is retention's business.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.errors import UsageError


@dataclass(frozen=True)
class CheckpointFacts:
    """What a policy may know of a checkpoint. `order` as in the catalog; `time` in Unix seconds, None when unknown."""

    attempt: str
    order: Tuple[int, int, str]
    step: int
    time: Optional[float] = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False


class Policy:
    """Base of all policies, also of those that a training script writes: one method, `keeps`."""

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """The attempts to keep, of `facts`, newest first."""
        raise NotImplementedError

    def to_json(self) -> Dict[str, Any]:
        """{kind: parameters}; `from_json` takes it back."""
        return {_NAMES[type(self)]: asdict(self)}  # type: ignore[call-overload]

    def __or__(self, other: Policy) -> Policy:
        return Either((*_parts(self, Either), *_parts(other, Either)))

    def __and__(self, other: Policy) -> Policy:
        return Both((*_parts(self, Both), *_parts(other, Both)))


@dataclass(frozen=True)
class Latest(Policy):
    """The newest `n`."""

    n: int

    def __post_init__(self) -> None:
        _positive("Latest", self.n)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return {checkpoint.attempt for checkpoint in facts[: self.n]}


@dataclass(frozen=True)
class EverySteps(Policy):
    """Of the line that leads to the newest: the first at or after each multiple of `n` steps."""

    n: int

    def __post_init__(self) -> None:
        _positive("EverySteps", self.n)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return _first_of_each(
            {checkpoint.attempt: checkpoint.step // self.n for checkpoint in line(facts) if checkpoint.step >= self.n}
        )


@dataclass(frozen=True)
class EverySeconds(Policy):
    """Of the line that leads to the newest: the first in each span of `s` seconds of wall-clock time."""

    s: float

    def __post_init__(self) -> None:
        _positive("EverySeconds", self.s)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return _first_of_each(
            {
                checkpoint.attempt: int(checkpoint.time // self.s)
                for checkpoint in line(facts)
                if checkpoint.time is not None
            }
        )


@dataclass(frozen=True)
class Best(Policy):
    """The `n` with the best `metric`, of those that have it; of equal ones the newer. NaN is worse than any number."""

    metric: str
    n: int = 1
    mode: str = "min"

    def __post_init__(self) -> None:
        _positive("Best", self.n)
        if self.mode not in ("min", "max"):
            raise UsageError(f"mode of Best is {self.mode!r}, expected 'min' or 'max'")

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        sign = 1.0 if self.mode == "min" else -1.0

        def rank(value: float) -> Tuple[bool, float]:
            return (True, 0.0) if math.isnan(value) else (False, sign * value)

        # sorted() is stable, so the newer of equals stays in front.
        ranked = sorted(
            (checkpoint for checkpoint in facts if self.metric in checkpoint.metrics),
            key=lambda checkpoint: rank(checkpoint.metrics[self.metric]),
        )
        return {checkpoint.attempt for checkpoint in ranked[: self.n]}


@dataclass(frozen=True)
class Pinned(Policy):
    """Those that are pinned: they are kept under every policy; this one keeps nothing else."""

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return {checkpoint.attempt for checkpoint in facts if checkpoint.pinned}


@dataclass(frozen=True)
class Either(Policy):
    """What at least one of them keeps."""

    of: Tuple[Policy, ...]

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return set().union(*(policy.keeps(facts) for policy in self.of))

    def to_json(self) -> Dict[str, Any]:
        """See Policy."""
        return {"any": [policy.to_json() for policy in self.of]}


@dataclass(frozen=True)
class Both(Policy):
    """What all of them keep."""

    of: Tuple[Policy, ...]

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """See Policy."""
        return set.intersection(*(policy.keeps(facts) for policy in self.of))

    def to_json(self) -> Dict[str, Any]:
        """See Policy."""
        return {"all": [policy.to_json() for policy in self.of]}


_NAMES = {Latest: "latest", EverySteps: "every_steps", EverySeconds: "every_seconds", Best: "best", Pinned: "pinned"}
_KINDS: Dict[str, Callable[..., Policy]] = {name: kind for kind, name in _NAMES.items()}


def from_json(body: Any) -> Policy:
    """Undo `to_json`. Raises UsageError for anything else."""
    if not isinstance(body, dict) or len(body) != 1:
        raise UsageError(f"{body!r} is no retention policy")
    ((kind, value),) = body.items()
    if kind in ("any", "all") and isinstance(value, list) and value:
        parts = tuple(from_json(part) for part in value)
        return Either(parts) if kind == "any" else Both(parts)
    try:
        return _KINDS[kind](**value)
    except (KeyError, TypeError):
        raise UsageError(f"{body!r} is no retention policy") from None


def is_data(policy: Policy) -> bool:
    """Whether `to_json` can say it: it is made of this package's own."""
    if isinstance(policy, (Either, Both)):
        return all(map(is_data, policy.of))
    return type(policy) in _NAMES


def line(facts: Sequence[CheckpointFacts]) -> List[CheckpointFacts]:
    """The checkpoints that lead to the newest one, newest first: after a step back, the branch that was left is out."""
    out: List[CheckpointFacts] = []
    for checkpoint in facts:
        if not out or checkpoint.step < out[-1].step:
            out.append(checkpoint)
    return out


def _first_of_each(spans: Mapping[str, int]) -> Set[str]:
    """Of each span the oldest attempt; `spans` is newest first."""
    return set({span: checkpoint_id for checkpoint_id, span in spans.items()}.values())


def _parts(policy: Policy, kind: type) -> Tuple[Policy, ...]:
    return policy.of if isinstance(policy, (Either, Both)) and type(policy) is kind else (policy,)


def _positive(kind: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{kind} takes a number above 0, not {value!r}")
