"""The tiers as the programs of a node know them: agents, the flush, and the timer that looks for ended jobs' snapshots.

A row for each tier of `checkpoint/tiers`. What these programs do about snapshots in shared memory they do for each row
that has a directory there, so a new row is either passed over for the reason that it states, or asked for by name.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple, Optional, Tuple, TypeVar

Handler = TypeVar("Handler")

STORAGE = "storage"
"""The name of the root among those of the tiers."""


class NodeTier(NamedTuple):
    """One tier.

    `subdirectory`: where its slots lie below a user's directory in shared memory ("": in that itself); None where it
    has none there, so that nothing of it is to be flushed or freed. `is_captured_here`: the trainers of its snapshots
    are processes of this node.
    """

    name: str
    subdirectory: Optional[str]
    is_captured_here: bool

    def slots_directory(self, user_directory: str) -> str:
        """Return where the slots of this tier lie, whether the directory is there or not."""
        if not self.subdirectory:
            return user_directory
        return os.path.join(user_directory, self.subdirectory)


MEMORY = NodeTier("memory", "", True)
PARTNER = NodeTier("partner", "partners", False)
LOCAL_DISK = NodeTier("local", None, True)
NODE_TIERS = (MEMORY, PARTNER, LOCAL_DISK)


def tiers_in_shared_memory() -> Tuple[NodeTier, ...]:
    """Return the tiers whose slots lie in this node's shared memory."""
    return tuple(tier for tier in NODE_TIERS if tier.subdirectory is not None)


def require_handler_for_each(purpose: str, handlers: Mapping[NodeTier, Handler]) -> Tuple[Handler, ...]:
    """Return the handlers of the tiers in shared memory, in the order of the tiers. Raises TypeError, with the name
    of the tier, where one is missing."""
    for tier in tiers_in_shared_memory():
        if tier not in handlers:
            raise TypeError(f"{purpose} does not know what to do with the tier {tier.name!r}")
    return tuple(handlers[tier] for tier in tiers_in_shared_memory())
