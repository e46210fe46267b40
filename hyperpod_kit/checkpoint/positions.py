"""Where a checkpoint's data goes on: without one valid position of all ranks it does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint import codec
from hyperpod_kit.checkpoint.agreement import Agreement
from hyperpod_kit.checkpoint.candidate_rejected import CandidateRejected
from hyperpod_kit.checkpoint.reason import Reason
from hyperpod_kit.errors import CheckpointError


def require_same_data_positions(agreement: Agreement, objects: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Compare on all ranks the positions to which their loaders would go, before anything of the state
    is changed. A collective.

    A loader is an object with `position_of(state)`, which raises CheckpointError for a state that
    is no position, and `refuse_other(state)`, which does for one in other data. Raises
    CandidateRejected where positions differ or are invalid, and CheckpointError for other data.
    """
    loaders = {name: thing for name, thing in objects.items() if hasattr(thing, "position_of")}
    if not loaders:
        return

    def read_positions() -> tuple[None, tuple[dict[str, int], tuple[str, str | None] | None]]:
        positions: dict[str, int] = {}
        other = None
        for name, thing in loaders.items():
            if f"objects.{name}" in tree:  # else the state does not fit, which is found later
                saved = codec.decode(tree[f"objects.{name}"], _refuse_tensor)
                if not isinstance(saved, dict):
                    raise CheckpointError(f"{name} is a {type(saved).__name__}, expected a position in the data")
                positions[name] = thing.position_of(saved)
                try:
                    thing.refuse_other(saved)
                except CheckpointError as err:
                    other = other or (err.message, err.hint)
        return None, (positions, other)

    _, shared = agreement.run_and_gather_or_reject(read_positions)
    for name in loaders:
        rank_positions = [positions.get(name) for positions, _ in shared]
        if len(set(rank_positions)) > 1:
            rank = next(rank for rank, position in enumerate(rank_positions) if position != rank_positions[0])
            raise CandidateRejected(
                Reason(f"{name}: rank 0 is at {rank_positions[0]} in the data, rank {rank} at {rank_positions[rank]}")
            )
    for _, other in shared:
        if other is not None:
            raise agreement.misfit_error(*other)


def _refuse_tensor(name: str) -> torch.Tensor:
    raise CheckpointError(f"{name} is a tensor, expected a position in the data")
