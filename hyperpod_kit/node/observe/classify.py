"""From what was seen of a mount to its state: pure, so that every case is a line in a test.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Optional, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.mounts.kinds.kind import MountIdentity
from hyperpod_kit.node.observe.probe import SHORTAGE, Probed
from hyperpod_kit.node.observe.prober import OBSTRUCTED
from hyperpod_kit.system.mountinfo import MountEntry

DEAD = frozenset((errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.ESHUTDOWN))
"""What a mount answers whose daemon or handle is gone for good; no retry brings it back."""

REMOVED = "what is mounted there no longer exists on its server; the health check's repair mounts it again"

NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))

REFUSED = frozenset((errno.EACCES, errno.EPERM))

SLOW_PART = 0.5
"""An answer later than this part of the deadline is `slow`: it serves, and somebody should look."""


@dataclass(frozen=True)
class MountObservation:
    """One look at one mount. All but `entry` is None when nothing is mounted at the path."""

    entry: Optional[MountEntry]
    probed: Optional[Probed] = None
    identity: Optional[MountIdentity] = None


def classify(mount: Mount, observation: MountObservation, deadline: float) -> Tuple[MountState, str]:
    """(state, detail); the detail is for a person and may be ""."""
    if observation.entry is None or observation.probed is None or observation.identity is None:
        return MountState.ABSENT, f"nothing is mounted at {mount.path}"
    probed, identity = observation.probed, observation.identity
    if probed.outcome == "error" and probed.errno in DEAD:
        return MountState.STALE, _dead_text(probed.errno)
    if identity.matches is False:
        return MountState.WRONG_TARGET, identity.detail
    if probed.outcome == "no_answer":
        if identity.endpoint_is_dead:
            return MountState.STALE, "the mount's daemon or server is gone"
        return MountState.HUNG, f"no answer within {deadline:g} s"
    if probed.outcome == "not_asked":
        return MountState.UNKNOWN, "this node was too busy for the check"
    if probed.outcome == "error":
        return MountState.UNKNOWN, f"{probed.operation}: {os.strerror(probed.errno)}"
    failed = _deep_probe_failure(mount, probed)
    if failed is not None:
        return failed
    if identity.matches is None:
        return MountState.UNKNOWN, identity.detail
    if not mount.read_only and (probed.read_only or observation.entry.read_only):
        return MountState.READONLY, "mounted read-only, expected read-write"
    # A bucket is never full; what its daemon says about blocks is made up.
    if mount.traits.tells_capacity:
        if probed.size > 0 and probed.available == 0:
            return MountState.FULL, "no space left"
        if probed.inodes > 0 and probed.available_inodes == 0:
            return MountState.FULL, "no inodes left: too many files"
    if probed.latency_ms > deadline * SLOW_PART * 1000:
        return MountState.SLOW, f"answered after {probed.latency_ms:.0f} ms"
    if observation.entry.stacked > 1:
        return MountState.OK, f"{observation.entry.stacked} mounts are stacked on this path"
    return MountState.OK, identity.detail if identity.detail.startswith("known by") else ""


def _dead_text(number: int) -> str:
    if number == errno.ESTALE:
        return f"{os.strerror(number)}: {REMOVED}"
    return os.strerror(number)


def _deep_probe_failure(mount: Mount, probed: Probed) -> Optional[Tuple[MountState, str]]:
    """State and detail after a list or a write that failed; None when it says nothing of the mount, or none failed."""
    # Where others may write, one of them may lay something in the way of what is written.
    in_the_way = probed.operation == "write" and probed.errno in OBSTRUCTED
    if not probed.errno or in_the_way or probed.errno in SHORTAGE:
        return None
    error_text = f"{probed.operation}: {os.strerror(probed.errno)}"
    if probed.errno in DEAD:
        return MountState.STALE, f"{probed.operation}: {_dead_text(probed.errno)}"
    if probed.errno == errno.ETIMEDOUT:
        return MountState.SLOW, f"{probed.operation}: did not end in time"
    if probed.errno in NO_SPACE:
        return MountState.FULL, error_text
    if probed.errno == errno.EROFS:
        return MountState.READONLY, error_text
    if probed.errno in REFUSED:
        # A bucket has one identity for all, so what is refused to us is refused to jobs. Elsewhere root may be nobody
        # (root_squash), and somebody's directory with mode 0700 is as it should be.
        if not mount.traits.one_identity:
            return None
        if probed.operation == "write":
            return MountState.READONLY, error_text
        return MountState.UNKNOWN, error_text
    return MountState.UNKNOWN, error_text
