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


def read_checkpoint_save_notes(node: Node) -> Sequence[FoundNote]:
    """Read the notes in shared memory on how the saves of the runs here fare, which rank 0's agents write."""
    try:
        if not _has_user_file_ending_with(node, ".saves"):
            return ()
        from hyperpod_kit.checkpoint.agent import failure_note

        return failure_note.read_all(node.paths.shared_memory)
    except OSError:
        return ()


def read_job_notes(node: Node) -> Sequence[FoundJob]:
    """Read the notes in shared memory on how jobs fare, which the `job run` of each batch script here writes."""
    try:
        if not _has_user_file_ending_with(node, ".job"):
            return ()
        from hyperpod_kit.checkpoint.agent import job_note

        return job_note.read_notes_of_live_jobs(node.paths.shared_memory)
    except OSError:
        return ()


def _has_user_file_ending_with(node: Node, ending: str) -> bool:
    from hyperpod_kit.checkpoint.agent import shm_paths

    with contextlib.closing(shm_paths.iter_user_files_as_uid_name_fd(node.paths.shared_memory, ending, 1)) as notes:
        return next(notes, None) is not None
