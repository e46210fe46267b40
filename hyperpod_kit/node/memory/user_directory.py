"""The directory in shared memory that root makes for a job's user, before the job starts.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import sys

from hyperpod_kit import audit
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.locks import hold_lock


def ensure_user_directory(node: Node, uid: str, *, asked_by: str) -> None:
    """Make the user's directory in shared memory, or keep it; with "" only the one in which they are made.
    Never raises OSError: without it a user makes one, and no job is kept away for that."""
    if os.geteuid() != 0 or (uid and not uid.isdigit()):
        return
    where = node.paths.shared_memory
    moved = ""
    try:
        with hold_lock(node, "shared-memory", seconds=2) as locked:
            moved = shm_paths.make_directories_as_root_reporting_moved(where, int(uid or -1), move_foreign_aside=locked)
    except OSError as err:
        if uid:
            whom = f"uid {uid}"
        else:
            whom = "users"
        print(f"hyperpod-kit: no directory for {whom} in {where}: {err.strerror or err}", file=sys.stderr)
        return
    if moved:
        audit.record_root_action_in_journal("moved aside", f"{where}/{shm_paths.PARENT}", moved, asked_by=asked_by)
        print(f"hyperpod-kit: {moved}", file=sys.stderr)
