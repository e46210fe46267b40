"""What an instance type's name says about the machine.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re

INSTANCE_STORE = re.compile(
    r"ml\.(?:[a-z]+\d+[a-z]*d[a-z]*|i\d[a-z]*|p[4-9][a-z]*|g(?!5g)[4-9][a-z]*|gr\d|trn\d[a-z]*)[.-]"
)
"""Types with local NVMe: a `d` behind the generation, storage-optimized and accelerated families; g5g has none."""


X86_64, ARM64 = "x86_64", "arm64"

_ARM = re.compile(r"ml\.([a-z]+\d+[a-z]*g[a-z]*\.|[^.]*-gb\d)")
"""AWS's names: a `g` behind the generation is Graviton (c7g, g5g; not g5), gb200 has Grace: both are arm64."""


def architecture(instance_type: str) -> str:
    """Of an instance of the type, as AWS writes it: x86_64 or arm64."""
    if _ARM.match(instance_type):
        return ARM64
    return X86_64


def has_instance_store(instance_type: str) -> bool:
    """Whether an instance of the type, `ml.r5d.large`, has local NVMe."""
    return INSTANCE_STORE.match(instance_type) is not None
