"""Loaders that were iterated before they were restored: what they then give is not what the checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperpod_kit.errors import CheckpointError


def error_for_loader_iterated_before_restore(objects: Mapping[str, Any]) -> CheckpointError | None:
    """Return the error for the first loader of the objects that was iterated before the restore, which
    would then have no effect; None where there is none.

    A loader with state of torchdata's kind gives the batches of its position to the *next* iterator
    that is made of it.
    """
    names = sorted(name for name, thing in objects.items() if _was_iterated_before_restore(thing))
    if not names:
        return None
    return CheckpointError(
        f"iter() was called on the loader {names[0]} of the State before its restore: the iterator would go on at the "
        "beginning of the data",
        hint=f"call restore first, then iter({names[0]}); state.restore_rng() then restores the random generators",
    )


def _was_iterated_before_restore(thing: object) -> bool:
    if not (hasattr(thing, "__iter__") and hasattr(thing, "load_state_dict")) or hasattr(thing, "position_of"):
        return False
    iterator = getattr(thing, "_iterator", None)
    # One that `state_dict` has made is the one that a loop will get; one that is through is nobody's any more.
    made_for_state = getattr(thing, "_initial_iter_for_state_dict", False)
    return iterator is not None and not made_for_state and not getattr(iterator, "_finished", False)
