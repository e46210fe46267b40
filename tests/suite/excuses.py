"""For which reasons a test may be skipped.

A test that is skipped counts as failed, unless its reason is one of EXCUSES: hardware, the kernel, or that this is not
root. All else that tests need is installed by ./setup.sh.
"""

from __future__ import annotations

import re
from typing import List, Tuple

EXCUSES = (
    r"no CUDA device",
    r"(needs root and )?/dev/fuse( \(modprobe fuse\)|: .*)?",
    r"cannot mount FUSE here: .*",
    r"this kernel mounts no FUSE",
    r"the kernel has no packet filter: .*",
    r"(overlayfs|squashfs) in the kernel",
    r"time namespaces in the kernel \(CONFIG_TIME_NS, Linux 5\.6\)",
    r"no btrfs on a loop device here: .*",
    r"no loop device to be had",
    r"no (user namespaces here|mount namespace to be had)",
    r"this host has no cgroup hierarchy of version 1 at .*",
    r"no control group can be made in .*",
    # Root of a container that may not mount is not root.
    r"needs (root and |FUSE and )?(a mount|mount namespaces)",
    r"cannot mount a tmpfs here",
    r"needs a file system of its own",
    r"no mounts here: not root, or not allowed",
    r"mounting needs root with CAP_SYS_ADMIN",
    r"CAP_SYS_ADMIN \(a container\? run it privileged\)",
    # Not in Debian, and nothing of this project's.
    r"no sources of enroot and pyxis in .*",
    r"this kernel's fanotify: .*",
    r"fanotify is not permitted here",
)
"""Reasons, whole, for which a test may be skipped."""
WITHOUT_ROOT = (r".*\broot\b.*", r".*\bnot installed\b.*", r"the packages? .*")
"""The same where this is not root, who alone can install what is missing."""
LACKING = "no machines here: this one lacks "
"""Before a list of reasons, each of which must be an excuse."""


def is_excused(reason: str, root: bool) -> bool:
    """Whether a test may be skipped for this reason."""
    if reason.startswith(LACKING):
        return all(is_excused(part, root) for part in reason[len(LACKING) :].split("; "))
    return any(re.fullmatch(excuse, reason, re.S) for excuse in (*EXCUSES, *(() if root else WITHOUT_ROOT)))


def judged(skipped: List[Tuple[str, str]], root: bool) -> int:
    """Print every skipped test with its reason; how many of them count as failed."""
    wrong = [not is_excused(reason, root) for _, reason in skipped]
    for (name, reason), bad in sorted(zip(skipped, wrong)):
        print(f"{'FAILED: skipped' if bad else 'skipped'}  {name}: {reason}")
    if any(wrong):
        print(f"{sum(wrong)} skipped for something that is neither hardware nor the lack of root: ./setup.sh system")
    return sum(wrong)
