"""What stands in for every kind of mount."""

from __future__ import annotations

from hyperpod_kit.model.mounts.kinds import for_every_kind
from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount

REHEARSED = for_every_kind("hyperpod_rehearsal.mounts", RehearsedMount)
