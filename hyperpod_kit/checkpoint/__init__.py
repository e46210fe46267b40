"""Checkpoints that stop training only for a copy in memory, and that are never restored wrong.

`from hyperpod_kit.checkpoint import Manager, State` needs torch; `hyperpod_kit.checkpoint.repository` needs nothing.
Names are loaded on first use, so that the torch-free part can be imported without torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs a timer's program, which needs one module of these, as much as its work
if TYPE_CHECKING:
    from typing import Any

    from hyperpod_kit.checkpoint.handle import Handle as Handle
    from hyperpod_kit.checkpoint.loading import load_state as load_state
    from hyperpod_kit.checkpoint.manager import Manager as Manager
    from hyperpod_kit.checkpoint.repository.catalog import attempts as attempts
    from hyperpod_kit.checkpoint.repository.policy import Best as Best
    from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts as CheckpointFacts
    from hyperpod_kit.checkpoint.repository.policy import EverySeconds as EverySeconds
    from hyperpod_kit.checkpoint.repository.policy import EverySteps as EverySteps
    from hyperpod_kit.checkpoint.repository.policy import Latest as Latest
    from hyperpod_kit.checkpoint.repository.policy import Pinned as Pinned
    from hyperpod_kit.checkpoint.repository.policy import Policy as Policy
    from hyperpod_kit.checkpoint.repository.selection import newest_valid as newest_valid
    from hyperpod_kit.checkpoint.repository.selection import newest_whole as newest_whole
    from hyperpod_kit.checkpoint.restore_progress import RestoreProgress as RestoreProgress
    from hyperpod_kit.checkpoint.results import Fresh as Fresh
    from hyperpod_kit.checkpoint.results import Peeked as Peeked
    from hyperpod_kit.checkpoint.results import Restored as Restored
    from hyperpod_kit.checkpoint.state import State as State
    from hyperpod_kit.checkpoint.weights import LoadedWeights as LoadedWeights
    from hyperpod_kit.checkpoint.weights import load_weights as load_weights

_WHERE = {
    "Manager": "manager",
    "State": "state",
    "Handle": "handle",
    "load_state": "loading",
    "RestoreProgress": "restore_progress",
    "Restored": "results",
    "Fresh": "results",
    "Peeked": "results",
    "LoadedWeights": "weights",
    "load_weights": "weights",
    "attempts": "repository.catalog",
    **dict.fromkeys(("newest_valid", "newest_whole"), "repository.selection"),
    **dict.fromkeys(
        ("Best", "CheckpointFacts", "EverySeconds", "EverySteps", "Latest", "Pinned", "Policy"), "repository.policy"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
