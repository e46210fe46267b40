"""Ranks that hold other names: pipeline stages. Found out in restore(), where collectives are allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from hyperpod_kit.checkpoint import placement
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.submeshes import TensorLayout
from hyperpod_kit.errors import StateNotSerializable


def update_placement_and_clear_state_cache(ranks: Ranks, state: State) -> bool:
    """Gather which ranks hold which tensors of the state, keep it in `ranks` and clear the state's
    cache if it has changed; return whether it has. A collective.

    Raises CheckpointError, the same on all ranks, for a name with other types or shapes on
    different ranks.
    """
    names: Mapping[str, TensorLayout] = {}
    with contextlib.suppress(StateNotSerializable):  # the first save says so
        names = state.names(ranks)
    changed = placement.gather_and_set_placement(ranks, names)
    if changed:
        state.clear_cache()
    return changed
