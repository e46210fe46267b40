"""How every kind of mount is written."""

from __future__ import annotations

from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.model.mounts.kinds import collect_kind_objects

FORMS = collect_kind_objects("hyperpod_kit.config.mounts", MountForm)
