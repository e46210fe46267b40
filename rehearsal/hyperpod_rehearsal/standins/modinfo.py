"""modinfo: the machine's kernel has no Lustre module, and the stand-in of mount.lustre needs none."""

from __future__ import annotations

import sys
from typing import Sequence

from hyperpod_rehearsal.standins.mount_lustre import VERSION


def main(argv: Sequence[str]) -> int:
    """Run modinfo, which knows the module lustre alone and prints its version; returns the exit code."""
    if "--version" in argv or "-V" in argv:
        print("modinfo 1.0+standin (hyperpod-kit rehearsal stand-in, not kmod): knows the module lustre only")
        return 0
    if not argv or argv[-1] != "lustre":
        print(f"modinfo: ERROR: Module {argv[-1] if argv else ''} not found.", file=sys.stderr)
        return 1
    print(VERSION.split()[1])
    return 0
