"""What FSx calls its file systems."""

from __future__ import annotations

import re

FSX_DNS = re.compile(r"(fs|fc)i?-[0-9a-f]{8,}\.[a-z0-9.-]{4,253}")
