"""A command that works on several places, of which those that are paths may hang."""

from __future__ import annotations

from typing import Callable, Sequence

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.repository.store.open import is_path


def run_bounded(work: Callable[[], int], locations: Sequence[str]) -> int:
    """The exit code of `work`, in a child with a deadline unless all places are in buckets. Raises as `ending`'s."""
    paths = [location for location in dict.fromkeys(locations) if is_path(location)]
    if paths:
        return ending.bounded(work, " or ".join(paths))
    return work()
