"""States of a mount, actions of a repair, roles of a node and lifecycle modes, and the sets that anybody asks about.

A new member is a line here and in each set that it belongs to. Nothing else in the package writes one as a word
(tests/test_words_of_enums.py). Members are texts: JSON, dictionaries and comparisons take them as such.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from enum import Enum


class _StringEnum(str, Enum):
    """A text that is printed as its value by every Python: `str` and f-strings of 3.8 to 3.12 differ otherwise."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return str.__format__(str(self.value), spec)


class MountState(_StringEnum):
    """What a check found (docs/health.md), in the order in which reports show them."""

    OK = "ok"
    ABSENT = "absent"
    WRONG_TARGET = "wrong_target"
    STALE = "stale"
    HUNG = "hung"
    READONLY = "readonly"
    FULL = "full"
    SLOW = "slow"
    UNKNOWN = "unknown"


STATES = tuple(MountState)

SERVES = frozenset((MountState.OK, MountState.SLOW))
"""A job may use the mount."""

MOUNTED = SERVES | {MountState.FULL}
"""It is there and ours. A full one too: mounting again frees nothing, and a node that refused to start for it could
never be used to clean up."""

RESPONSIVE = MOUNTED | {MountState.READONLY}
"""Touching it hangs nobody, and something of ours is there."""

OCCUPIED = frozenset((MountState.WRONG_TARGET, MountState.READONLY, MountState.UNKNOWN))
"""Something lives at the path that starting a unit would not change."""

ABSENT_OR_STALE = frozenset((MountState.ABSENT, MountState.STALE))
"""Nothing is there, or what is there is dead: starting its unit is the repair."""


class RepairAction(_StringEnum):
    """What to do about a mount: nothing, look again first, start its unit, or kill its daemon before that."""

    NONE = "none"
    WAIT = "wait"
    RESTART = "restart"
    KILL = "kill"


REPAIRS = frozenset((RepairAction.RESTART, RepairAction.KILL))
"""Actions that do something now."""


class Role(_StringEnum):
    """What a node of an instance group is to Slurm."""

    CONTROLLER = "controller"
    LOGIN = "login"
    COMPUTE = "compute"


ROLES = tuple(role.value for role in Role)
"""As the configuration writes them."""


class LifecycleMode(_StringEnum):
    """Which of HyperPod's three lifecycle modes: ours after HyperPod's own set-up, ours alone, HyperPod's alone."""

    ON_INIT_COMPLETE = "on_init_complete"
    ON_CREATE = "on_create"
    AMI_ONLY = "ami_only"


LIFECYCLE_MODES = tuple(mode.value for mode in LifecycleMode)
"""As the configuration writes them."""
