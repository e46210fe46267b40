"""What AWS is asked about every kind of mount."""

from __future__ import annotations

from hyperpod_kit.model.mounts.kinds import collect_kind_objects
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry

INQUIRIES = collect_kind_objects("hyperpod_kit.preflight.mounts", MountInquiry)
