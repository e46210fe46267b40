"""Local disks: AWS is asked nothing."""

from __future__ import annotations

from hyperpod_kit.preflight.mounts.inquiry import NOTHING

KIND = NOTHING
