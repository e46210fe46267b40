"""What tests of checkpoints share is shared by those of the lab."""

from __future__ import annotations

from tests.unit.checkpoint.conftest import shm

__all__ = ["shm"]
