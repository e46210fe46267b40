"""Rehearsals of this checkout's tests, beside those of other checkouts and of users on the same machine.

All names on the machine (of machines, links, mounts, control groups) follow from the state directory, so a directory of
its own is enough. After an interrupted run: `HPK_REHEARSAL_STATE=DIRECTORY hyperpod-kit rehearse down --all`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hyperpod_kit.environment import HPK_REHEARSAL_STATE
from hyperpod_rehearsal.records.layout import STATE_BASE

CHECKOUT = hashlib.sha256(str(Path(__file__).resolve().parents[2]).encode()).hexdigest()[:8]
"""Marks this checkout among others."""


def use() -> None:
    """For the tests of this process and all that they start, unless the environment names a directory already."""
    os.environ.setdefault(HPK_REHEARSAL_STATE, f"{STATE_BASE}-{CHECKOUT}")
