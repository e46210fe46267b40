"""The columns of docs/faults.md: the clusters that can be rehearsed, and the stock one with checkpoints elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Dict

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.records import profiles
from hyperpod_rehearsal.records.profiles import STOCK, Profile

S3 = replace(STOCK, name="s3")
"""Checkpoint roots are `s3://…`."""

MOUNTPOINT = replace(STOCK, name="mountpoint")
"""Checkpoint roots are directories that Mountpoint for S3 serves."""

CONTAINER = replace(STOCK, name="container")
"""Ranks run in containers of enroot's, by pyxis."""

PROFILES: Dict[str, Profile] = {**profiles.PROFILES, **{one.name: one for one in (S3, MOUNTPOINT, CONTAINER)}}


OF_2026 = tuple(name for name, profile in PROFILES.items() if profile.agents)
"""Those with what HyperPod has had since 2026."""


def _named(name: str) -> Profile:
    if name not in PROFILES:
        raise RehearsalError(f"no profile {name}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


PROFILE = _named(os.environ.get("HPK_FAULTS_PROFILE", "") or STOCK.name)
"""The one of this run."""

IN_S3 = PROFILE in (S3, MOUNTPOINT)

IN_FOLDERS = tuple(name for name in PROFILES if name not in (S3.name, MOUNTPOINT.name))
"""Those whose rows may look at a checkpoint root as a directory."""
