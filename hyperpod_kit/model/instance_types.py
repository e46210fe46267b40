"""What an instance type's name says about the machine.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re

INSTANCE_STORE = re.compile(
    r"ml\.(?:[a-z]+\d+[a-z]*d[a-z]*|i\d[a-z]*|p[4-9][a-z]*|g(?!5g)[4-9][a-z]*|gr\d|trn\d[a-z]*)[.-]"
)
"""Types with local NVMe: a `d` behind the generation, storage-optimized and accelerated families; g5g has none."""


def has_instance_store(instance_type: str) -> bool:
    """Whether an instance of the type, `ml.r5d.large`, has local NVMe."""
    return INSTANCE_STORE.match(instance_type) is not None
