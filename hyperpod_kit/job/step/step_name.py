"""Names of the Slurm steps that this process starts. A job may have others: of a second `job run` in the same
allocation, of an older bundle, of the user. They are never signalled or ended.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import secrets

from hyperpod_kit.slurm.environment import STEP_FAMILY

PROCESS_PREFIX = f"{STEP_FAMILY}{secrets.token_hex(4)}."
"""How the names of this process's steps begin: an attempt's own name is the same in two `job run` of one allocation."""


def full_name(purpose: str) -> str:
    """Return the name of a step of this process. `purpose`: an attempt, or what a short step is for."""
    return PROCESS_PREFIX + purpose
