"""Moments that AWS gives, as people read them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Optional


def format_utc(time: Optional[datetime]) -> str:
    """Format a moment like `2026-01-31 12:00:00Z`; "" for none.

    botocore gives the times of an answer in the zone of this machine.
    """
    if time:
        return time.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    return ""
