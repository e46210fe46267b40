"""Checkpoints that stop training only for a copy in memory, and that are never restored wrong.

Begin with `State`, which names what a checkpoint holds, and `Manager`, which saves and restores it in a training loop.
`load_state` and `load_weights` read a checkpoint without a Manager. `list_checkpoints`, `newest_complete` and
`newest_valid` look at a root from the outside, without torch. `Latest`, `EverySteps`, `EverySeconds`, `Best` and
`Pinned` are the retention policies.

`from hyperpod_kit.checkpoint import Manager, State` needs torch; `hyperpod_kit.checkpoint.repository` needs nothing.
Names are loaded on first use, so that the torch-free part can be imported without torch.
"""

from __future__ import annotations

_MODULES = {
    "Best": "repository.policy",
    "CheckpointFacts": "repository.policy",
    "CheckpointInfo": "restore.results",
    "ConvertedFrom": "weights.weight_sources",
    "EverySeconds": "repository.policy",
    "EverySteps": "repository.policy",
    "Fresh": "restore.results",
    "Handle": "saves.handle",
    "Latest": "repository.policy",
    "LoadedWeights": "weights.weights",
    "Manager": "manager",
    "Pinned": "repository.policy",
    "Policy": "repository.policy",
    "RestoreProgress": "transfer.restore_progress",
    "Restored": "restore.results",
    "State": "state.state",
    "list_checkpoints": "repository.records.catalog",
    "load_state": "restore.loading",
    "load_weights": "weights.weights",
    "newest_complete": "repository.selection",
    "newest_valid": "repository.selection",
}
"""Public name -> the module below this package that defines it; `__init__.pyi` says the same to type checkers."""

_RENAMED = {"Peeked": "CheckpointInfo", "attempts": "list_checkpoints", "newest_whole": "newest_complete"}
"""Public name of 0.1.0 -> the name of today."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _RENAMED:
        from hyperpod_kit.renamed import warn_of_renamed

        warn_of_renamed(__name__, name, _RENAMED[name])
        name = _RENAMED[name]
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
