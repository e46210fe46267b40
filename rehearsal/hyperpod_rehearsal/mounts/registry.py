"""What stands in for every kind of mount."""

from __future__ import annotations

from hyperpod_kit.model.mounts.kinds import collect_kind_objects
from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount

REHEARSED = collect_kind_objects("hyperpod_rehearsal.mounts", RehearsedMount)
