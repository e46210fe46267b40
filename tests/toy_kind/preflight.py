"""The toy filer: AWS knows nothing of it."""

from __future__ import annotations

from hyperpod_kit.preflight.mounts.inquiry import NOTHING

KIND = NOTHING
