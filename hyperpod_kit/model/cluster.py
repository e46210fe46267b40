"""A cluster as its configuration describes it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

LIFECYCLE_MODES = ("on_init_complete", "on_create", "ami_only")
"""Which of HyperPod's three lifecycle modes: ours after HyperPod's own set-up, ours alone, HyperPod's alone."""


@dataclass(frozen=True)
class InstanceGroup:
    """One instance group. `role` is one of model.mounts.ROLES; `partition` only for compute groups."""

    name: str
    instance_type: str
    count: int
    role: str
    partition: Optional[str] = None


@dataclass(frozen=True)
class Vpc:
    """Where the nodes live."""

    security_group_ids: Tuple[str, ...]
    subnet_ids: Tuple[str, ...]


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that CreateCluster needs, besides the bundle's location."""

    name: str
    region: str
    execution_role: str
    groups: Tuple[InstanceGroup, ...]
    lifecycle_mode: str = "on_init_complete"
    node_recovery: str = "Automatic"
    vpc: Optional[Vpc] = None
    tags: Tuple[Tuple[str, str], ...] = field(default=())

    @property
    def controller_group(self) -> str:
        """Name of the controller's group. Raises StopIteration when there is none (validation forbids it)."""
        return next(group.name for group in self.groups if group.role == "controller")
