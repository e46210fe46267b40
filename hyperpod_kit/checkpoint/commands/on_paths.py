"""A command that works on several places, of which those that are paths may hang."""

from __future__ import annotations

from typing import Callable, Sequence

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.repository.store.open import is_path


def run_with_deadline_on_paths(work: Callable[[], int], locations: Sequence[str]) -> int:
    """Return the exit code of `work`, run in a child with a deadline unless all locations are in buckets. Raise
    as `ending.run_in_bounded_child_as_uid` does."""
    paths = [location for location in dict.fromkeys(locations) if is_path(location)]
    if paths:
        return ending.run_in_bounded_child_as_uid(work, " or ".join(paths))
    return work()
