"""Where slurmctld keeps its state (StateSaveLocation): on a shared file system a controller that is replaced knows its
jobs, on its own disk it has forgotten them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from enum import Enum
from typing import Optional, Sequence

from hyperpod_kit.model.cluster import ClusterSpec
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import LifecycleMode, Role

OWN_DISK = "own-disk"
"""What the configuration says for: leave StateSaveLocation where the platform has it."""


class StateCopy(Enum):
    """Of two copies of slurmctld's state: that on shared storage, or this controller's own."""

    SHARED = "shared"
    LOCAL = "own"


def slurm_state_unfit_reason(mount: Mount, controller_group: str) -> str:
    """Why slurmctld's state cannot lie on this mount; "" when it can."""
    if not mount.traits.keeps_slurm_state:
        return f"a {mount.kind} mount has no reliable renames, links or locks, or belongs to one node"
    if mount.has_single_owner():
        return "behind an access point every file belongs to one user"
    if not mount.is_carried_by(Role.CONTROLLER, controller_group):
        return "the controller does not mount it"
    if mount.required:
        return ""
    return "it is not required, and slurmctld could not start without it"


def mount_not_shared_by_all_nodes_reason(mount: Mount, cluster: ClusterSpec) -> str:
    """Return why nodes cannot exchange files on this mount; "" when they can."""
    if not mount.traits.keeps_slurm_state:
        return f"a {mount.kind} mount has no reliable renames, or belongs to one node"
    if mount.has_single_owner():
        return "behind an access point every file belongs to one user"
    without = [group.name for group in cluster.groups if not mount.is_carried_by(group.role, group.name)]
    if without:
        return f"{', '.join(without)} does not mount it"
    if mount.required:
        return ""
    return "it is not required, so a node might be without it"


def choose_slurm_state_mount_name(
    mounts: Sequence[Mount], requested: Optional[str], controller_group: str, lifecycle_mode: str
) -> str:
    """Name of the mount that has slurmctld's state, "" for the controller's own disk.

    requested: a mount's name or OWN_DISK; None: the first mount that fits. No script of ours runs in ami_only mode.
    """
    if requested == OWN_DISK or lifecycle_mode == LifecycleMode.AMI_ONLY:
        return ""
    fitting = [mount.name for mount in mounts if not slurm_state_unfit_reason(mount, controller_group)]
    if requested is None:
        if fitting:
            return fitting[0]
        return ""
    if requested in fitting:
        return requested
    return ""
