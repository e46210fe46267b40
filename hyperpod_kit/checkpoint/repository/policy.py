"""Which checkpoints are worth keeping: policies as plain data, which combine with | and &.

    Latest(3) | EverySteps(5000) | Best("val_loss", 2, mode="min")

`Manager(keep=...)` and `hyperpod-kit checkpoint prune` take one. A policy sees valid committed checkpoints only, newest
first, and names those that it keeps. What no policy may touch (the newest, what is pinned or being read) is retention's
business.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.renamed import renamed_fields


@renamed_fields(attempt="checkpoint_id")
@dataclass(frozen=True)
class CheckpointFacts:
    """What a policy may know of a checkpoint.

    Attributes:
        checkpoint_id: The name of the checkpoint.
        order: The sort key, (epoch, seq, nonce): the greatest is the newest.
        step: The last completed step.
        time: When it was committed, in Unix seconds; None when that is unknown.
        metrics: What `Manager.save(metrics=...)` was given.
        pinned: Whether it is pinned (`hyperpod-kit checkpoint pin`).

    Example:
        from hyperpod_kit.checkpoint import Best, CheckpointFacts

        older = CheckpointFacts("a", (1, 1, ""), step=100, metrics={"val_loss": 2.0})
        newer = CheckpointFacts("b", (1, 2, ""), step=200, metrics={"val_loss": 3.0})
        assert Best("val_loss").keeps([newer, older]) == {"a"}
    """

    checkpoint_id: str
    order: Tuple[int, int, str]
    step: int
    time: Optional[float] = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False


class Policy:
    """Base of all retention policies, also of those that a training script writes: one method, `keeps`.

    Policies combine: `a | b` keeps what at least one of them keeps, `a & b` what both keep.

    Example:
        from collections.abc import Sequence
        from hyperpod_kit.checkpoint import CheckpointFacts, Latest, Policy

        class EvenSteps(Policy):
            def keeps(self, facts: Sequence[CheckpointFacts]) -> set[str]:
                return {checkpoint.checkpoint_id for checkpoint in facts if checkpoint.step % 2 == 0}

        keep = Latest(3) | EvenSteps()  # Manager(root, keep=keep)
    """

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep; all others may be deleted.
        """
        raise NotImplementedError

    def to_json(self) -> Dict[str, Any]:
        """Describe the policy as {kind: parameters}; `from_json` takes it back.

        Returns:
            The description. A class of your own has none, and raises KeyError.
        """
        return {_NAMES[type(self)]: asdict(self)}  # type: ignore[call-overload]

    def __or__(self, other: Policy) -> Policy:
        return Either((*_operands_of_kind(self, Either), *_operands_of_kind(other, Either)))

    def __and__(self, other: Policy) -> Policy:
        return Both((*_operands_of_kind(self, Both), *_operands_of_kind(other, Both)))


@dataclass(frozen=True)
class Latest(Policy):
    """Keep the newest `n` checkpoints.

    Attributes:
        n: How many, above 0; UsageError otherwise.

    Example:
        from hyperpod_kit.checkpoint import Latest

        keep = Latest(5)  # Manager(root, keep=keep)
    """

    n: int

    def __post_init__(self) -> None:
        _require_positive("Latest", self.n)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return {checkpoint.checkpoint_id for checkpoint in facts[: self.n]}


@dataclass(frozen=True)
class EverySteps(Policy):
    """Keep the first checkpoint at or after each multiple of `n` steps.

    Only the line that leads to the newest checkpoint counts: after a step back, the branch that was left is out.

    Attributes:
        n: How many steps, above 0; UsageError otherwise.

    Example:
        from hyperpod_kit.checkpoint import EverySteps, Latest

        keep = Latest(3) | EverySteps(5000)  # Manager(root, keep=keep)
    """

    n: int

    def __post_init__(self) -> None:
        _require_positive("EverySteps", self.n)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return _oldest_per_span(
            {
                checkpoint.checkpoint_id: checkpoint.step // self.n
                for checkpoint in checkpoints_leading_to_newest(facts)
                if checkpoint.step >= self.n
            }
        )


@dataclass(frozen=True)
class EverySeconds(Policy):
    """Keep the first checkpoint in each span of `s` seconds of wall-clock time.

    Only the line that leads to the newest checkpoint counts, and of it the checkpoints whose time is known.

    Attributes:
        s: How many seconds, above 0; UsageError otherwise.

    Example:
        from hyperpod_kit.checkpoint import EverySeconds, Latest

        keep = Latest(3) | EverySeconds(24 * 3600)  # Manager(root, keep=keep)
    """

    s: float

    def __post_init__(self) -> None:
        _require_positive("EverySeconds", self.s)

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return _oldest_per_span(
            {
                checkpoint.checkpoint_id: int(checkpoint.time // self.s)
                for checkpoint in checkpoints_leading_to_newest(facts)
                if checkpoint.time is not None
            }
        )


@dataclass(frozen=True)
class Best(Policy):
    """Keep the `n` checkpoints with the best `metric`.

    Only those count that were saved with it (`Manager.save(metrics=...)`). Of equal ones the newer is better; NaN is
    worse than any number.

    Attributes:
        metric: The name of the metric.
        n: How many, above 0; UsageError otherwise. Default: 1.
        mode: "min" (default) or "max": which value is the best; UsageError for another word.

    Example:
        from hyperpod_kit.checkpoint import Best, Latest

        keep = Latest(3) | Best("val_loss", 2, mode="min")  # Manager(root, keep=keep)
    """

    metric: str
    n: int = 1
    mode: str = "min"

    def __post_init__(self) -> None:
        _require_positive("Best", self.n)
        if self.mode not in ("min", "max"):
            raise UsageError(f"mode of Best is {self.mode!r}, expected 'min' or 'max'")

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        if self.mode == "min":
            sign = 1.0
        else:
            sign = -1.0

        def rank(value: float) -> Tuple[bool, float]:
            if math.isnan(value):
                return (True, 0.0)
            return (False, sign * value)

        # sorted() is stable, so the newer of equals stays in front.
        ranked = sorted(
            (checkpoint for checkpoint in facts if self.metric in checkpoint.metrics),
            key=lambda checkpoint: rank(checkpoint.metrics[self.metric]),
        )
        return {checkpoint.checkpoint_id for checkpoint in ranked[: self.n]}


@dataclass(frozen=True)
class Pinned(Policy):
    """Keep the pinned checkpoints, which every policy keeps, and nothing else.

    Example:
        from hyperpod_kit.checkpoint import Pinned

        keep = Pinned()  # Manager(root, keep=keep)
    """

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return {checkpoint.checkpoint_id for checkpoint in facts if checkpoint.pinned}


@dataclass(frozen=True)
class Either(Policy):
    """Keep what at least one of the policies keeps: `a | b`.

    Attributes:
        of: The policies.
    """

    of: Tuple[Policy, ...]

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return set().union(*(policy.keeps(facts) for policy in self.of))

    def to_json(self) -> Dict[str, Any]:
        """Describe the policy, see `Policy.to_json`.

        Returns:
            The description.
        """
        return {"any": [policy.to_json() for policy in self.of]}


@dataclass(frozen=True)
class Both(Policy):
    """Keep what all of the policies keep: `a & b`.

    Attributes:
        of: The policies.
    """

    of: Tuple[Policy, ...]

    def keeps(self, facts: Sequence[CheckpointFacts]) -> Set[str]:
        """Choose the checkpoints to keep, see `Policy.keeps`.

        Args:
            facts: The valid committed checkpoints, newest first.

        Returns:
            The names of those to keep.
        """
        return set.intersection(*(policy.keeps(facts) for policy in self.of))

    def to_json(self) -> Dict[str, Any]:
        """Describe the policy, see `Policy.to_json`.

        Returns:
            The description.
        """
        return {"all": [policy.to_json() for policy in self.of]}


_NAMES = {Latest: "latest", EverySteps: "every_steps", EverySeconds: "every_seconds", Best: "best", Pinned: "pinned"}
_KINDS: Dict[str, Callable[..., Policy]] = {name: kind for kind, name in _NAMES.items()}


def from_json(body: Any) -> Policy:
    """Undo `to_json`. Raises UsageError for anything else."""
    if not isinstance(body, dict) or len(body) != 1:
        raise UsageError(f"{body!r} is not a retention policy")
    ((kind, value),) = body.items()
    if kind in ("any", "all") and isinstance(value, list) and value:
        parts = tuple(from_json(part) for part in value)
        if kind == "any":
            return Either(parts)
        return Both(parts)
    try:
        return _KINDS[kind](**value)
    except (KeyError, TypeError):
        raise UsageError(f"{body!r} is not a retention policy") from None


def is_serializable(policy: Policy) -> bool:
    """Return whether `to_json` can describe the policy: it is made of this package's own classes."""
    if isinstance(policy, (Either, Both)):
        return all(map(is_serializable, policy.of))
    return type(policy) in _NAMES


def checkpoints_leading_to_newest(facts: Sequence[CheckpointFacts]) -> List[CheckpointFacts]:
    """Return the checkpoints that lead to the newest one, newest first: after a step back, the branch that was
    left is out."""
    out: List[CheckpointFacts] = []
    for checkpoint in facts:
        if not out or checkpoint.step < out[-1].step:
            out.append(checkpoint)
    return out


def _oldest_per_span(spans: Mapping[str, int]) -> Set[str]:
    """Return the oldest checkpoint of each span; `spans` is newest first."""
    return set({span: checkpoint_id for checkpoint_id, span in spans.items()}.values())


def _operands_of_kind(policy: Policy, kind: type) -> Tuple[Policy, ...]:
    if isinstance(policy, (Either, Both)) and type(policy) is kind:
        return policy.of
    return (policy,)


def _require_positive(policy_name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{policy_name} takes a number above 0, not {value!r}")
