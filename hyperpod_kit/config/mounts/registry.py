"""How every kind of mount is written."""

from __future__ import annotations

from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.model.mounts.kinds import for_every_kind

FORMS = for_every_kind("hyperpod_kit.config.mounts", MountForm)
