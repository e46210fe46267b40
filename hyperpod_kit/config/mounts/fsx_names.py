"""What FSx calls its file systems."""

from __future__ import annotations

import re

_SUFFIXES = ("amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov", "cloud.adc-e.uk")
"""Of AWS's partitions (botocore's partitions.json): a name that goes on after one of them is somebody else's host."""
FSX_DNS = rf"(fs|fc)i?-[0-9a-f]{{8,}}\.fsx\.[a-z0-9-]+\.({'|'.join(map(re.escape, _SUFFIXES))})"
