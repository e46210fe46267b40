"""What programs of users leave in shared memory for the metrics: how saves fare, how jobs fare.

Most nodes have neither most of the time, and every check would pay for the imports.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Sequence

from hyperpod_kit.node.context import Node

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent.failure_note import FoundNote
    from hyperpod_kit.checkpoint.agent.job_note import FoundJob


def saves(node: Node) -> Sequence[FoundNote]:
    """How the saves of the runs here fare, by the word of rank 0's agents."""
    try:
        if not _any(node, ".saves"):
            return ()
        from hyperpod_kit.checkpoint.agent import failure_note

        return failure_note.read_all(node.paths.shared_memory)
    except OSError:
        return ()


def jobs(node: Node) -> Sequence[FoundJob]:
    """How the jobs fare whose batch scripts run here, by the word of their `job run`."""
    try:
        if not _any(node, ".job"):
            return ()
        from hyperpod_kit.checkpoint.agent import job_note

        return job_note.read_all(node.paths.shared_memory)
    except OSError:
        return ()


def _any(node: Node, ending: str) -> bool:
    from hyperpod_kit.checkpoint.agent import shm_paths

    with contextlib.closing(shm_paths.list_files(node.paths.shared_memory, ending, 1)) as notes:
        return next(notes, None) is not None
