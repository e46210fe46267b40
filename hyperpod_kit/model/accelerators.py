"""How many GPUs and EFA devices an instance type has, and what may be done about one that fails.

GPUs: EC2's "Specifications for accelerated computing instances". EFA devices: the most that DescribeInstanceTypes gives
(EfaInfo.MaximumEfaInterfaces), which is what HyperPod attaches; types of which that was not to be read have none here.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Optional

REPORT, DRAIN, REBOOT, REPLACE = "report", "drain", "reboot", "replace"
ACTIONS = (REPORT, DRAIN, REBOOT, REPLACE)
"""The most that may be done about a fault, in order: each may do what those before it do."""

_ONE_GPU_SIZES = r"(2|4|8|16)?xlarge"
_GPUS = (
    (r"p3\.2xlarge", 1),
    (r"p3\.8xlarge", 4),
    (r"p3\.16xlarge|p3dn\.24xlarge", 8),
    (r"p4de?\.24xlarge", 8),
    (r"p5\.4xlarge", 1),
    (r"p5(e|en)?\.48xlarge", 8),
    (r"p6-b[23]00\.48xlarge", 8),
    (r"p6e-gb200\.36xlarge", 4),
    (rf"g4dn\.{_ONE_GPU_SIZES}", 1),
    (r"g4dn\.12xlarge", 4),
    (r"g4dn\.metal", 8),
    (rf"(g5|g6|g6e)\.{_ONE_GPU_SIZES}", 1),
    (r"gr6\.[48]xlarge", 1),
    (r"(g5|g6|g6e)\.(12|24)xlarge", 4),
    (r"(g5|g6|g6e)\.48xlarge", 8),
)
_EFA = (
    (r"p4de?\.24xlarge", 4),
    (r"p5e?\.48xlarge", 32),
    (r"p5en\.48xlarge", 16),
    (r"p6-b200\.48xlarge", 8),
    (r"trn1\.32xlarge", 8),
    (r"trn1n\.32xlarge|trn2\.48xlarge", 16),
)


def gpu_count(instance_type: str) -> Optional[int]:
    """NVIDIA GPUs of an instance of the type, `ml.p5.48xlarge`; None for a type that is not known here."""
    return next((count for pattern, count in _GPUS if re.fullmatch(rf"ml\.({pattern})", instance_type)), None)


def efa_count(instance_type: str) -> Optional[int]:
    """EFA devices of an instance of the type; None for a type that is not known here."""
    return next((count for pattern, count in _EFA if re.fullmatch(rf"ml\.({pattern})", instance_type)), None)
