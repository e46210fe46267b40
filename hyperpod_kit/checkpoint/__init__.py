"""Checkpoints that stop training only for a copy in memory, and that are never restored wrong.

Begin with `State`, which names what a checkpoint holds, and `Manager`, which saves and restores it in a training loop.
`load_state` and `load_weights` read a checkpoint without a Manager. `attempts`, `newest_whole` and `newest_valid` look
at a root from the outside, without torch. `Latest`, `EverySteps`, `EverySeconds`, `Best` and `Pinned` are the retention
policies.

`from hyperpod_kit.checkpoint import Manager, State` needs torch; `hyperpod_kit.checkpoint.repository` needs nothing.
Names are loaded on first use, so that the torch-free part can be imported without torch.
"""

from __future__ import annotations

_MODULES = {
    "Best": "repository.policy",
    "CheckpointFacts": "repository.policy",
    "ConvertedFrom": "weight_sources",
    "EverySeconds": "repository.policy",
    "EverySteps": "repository.policy",
    "Fresh": "results",
    "Handle": "handle",
    "Latest": "repository.policy",
    "LoadedWeights": "weights",
    "Manager": "manager",
    "Peeked": "results",
    "Pinned": "repository.policy",
    "Policy": "repository.policy",
    "RestoreProgress": "restore_progress",
    "Restored": "results",
    "State": "state",
    "attempts": "repository.catalog",
    "load_state": "loading",
    "load_weights": "weights",
    "newest_valid": "repository.selection",
    "newest_whole": "repository.selection",
}
"""Public name -> the module below this package that defines it; `__init__.pyi` says the same to type checkers."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
