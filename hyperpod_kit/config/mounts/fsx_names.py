"""What FSx calls its file systems."""

from __future__ import annotations

FSX_DNS = r"(fs|fc)i?-[0-9a-f]{8,}\.[a-z0-9.-]{4,253}"
