"""What FSx calls its file systems."""

from __future__ import annotations

FSX_DNS = r"(fs|fc)i?-[0-9a-f]{8,}\.[a-z0-9.-]{4,253}"
WHY = "`{value}` is not the DNS name of an FSx file system"
HINT = "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"
