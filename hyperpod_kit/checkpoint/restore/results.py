"""What `Manager.restore`, `Manager.inspect` and `load_state` return.

Each result has `next_step`, the step that training continues with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hyperpod_kit.renamed import renamed_fields


@renamed_fields(attempt="checkpoint_id")
@dataclass(frozen=True)
class Restored:
    """The state is that of `step`, the last completed one; training continues with `next_step`.

    Attributes:
        step: The last completed step.
        epoch: The number of the run's start that saved it.
        seq: The number of the save over the whole life of the root.
        checkpoint_id: The name of the checkpoint, as `hyperpod-kit checkpoint ls` lists it.
        tier: Where it was read from: `memory` (the node's shared memory), `local` (its disk) or `storage` (the root),
            joined by `+` where ranks differ.
        seconds: How long the restore took.
        bytes: How large the checkpoint is, over all ranks.
        rejected: The name of every newer candidate, and why it was not taken.
        line: The epoch of the start from scratch that it descends from; 0 when that is not known.

    Example:
        With a `manager` and a `state`, of a run that has saved before:

            from hyperpod_kit.checkpoint import Restored

            result = manager.restore(state)
            if isinstance(result, Restored):
                print(f"step {result.step} from {result.tier}: {result.bytes / result.seconds / 1e9:.1f} GB/s")
            for checkpoint_id, reason in result.rejected:
                print(f"not {checkpoint_id}: {reason}")
    """

    step: int
    epoch: int
    seq: int
    checkpoint_id: str
    tier: str
    seconds: float
    bytes: int
    rejected: tuple[tuple[str, str], ...] = ()
    line: int = 0

    @property
    def next_step(self) -> int:
        """The step to train next: the one after `step`."""
        return self.step + 1


@renamed_fields(attempt="checkpoint_id")
@dataclass(frozen=True)
class CheckpointInfo:
    """What `Manager.restore` would try first, as far as it is no tensor.

    Nothing was restored, and of the tensors nothing was read: the restore may still go back to an older one.

    Attributes:
        step: The last completed step.
        epoch: The number of the run's start that saved it.
        seq: The number of the save over the whole life of the root.
        checkpoint_id: The name of the checkpoint, to be compared with that of the restore.
        extra: What `State(extra=...)` of rank 0 holds, with None in the place of each tensor.
        metrics: What `Manager.save(metrics=...)` was given.
        rejected: The name of every newer candidate, and why it was not taken.

    Example:
        With a `manager`, of a run that has saved before:

            newest = manager.inspect()
            if newest is not None:
                print(f"{newest.checkpoint_id} is of step {newest.step}: {newest.metrics}")
    """

    step: int
    epoch: int
    seq: int
    checkpoint_id: str
    extra: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    rejected: tuple[tuple[str, str], ...] = ()

    @property
    def next_step(self) -> int:
        """The step to train next after this checkpoint: the one after `step`."""
        return self.step + 1


@dataclass(frozen=True)
class Fresh:
    """Nothing was restored: the state is untouched, and training begins at step 0.

    Nothing was ever committed, or a person has asked to begin anew (HPK_FRESH, `hyperpod-kit job run --fresh`).

    Attributes:
        seconds: How long it took to know that.
        rejected: The name of every candidate, and why it was not taken.
        next_step: The step to train next: 0.

    Example:
        With a `manager` and a `state`:

            from hyperpod_kit.checkpoint import Fresh

            if isinstance(manager.restore(state), Fresh):
                print("training begins from scratch")
    """

    seconds: float = 0.0
    rejected: tuple[tuple[str, str], ...] = ()
    next_step: int = 0
