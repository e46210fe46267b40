"""What AWS is asked about every kind of mount."""

from __future__ import annotations

from hyperpod_kit.model.mounts.kinds import for_every_kind
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry

INQUIRIES = for_every_kind("hyperpod_kit.preflight.mounts", MountInquiry)
