"""A cluster as its configuration describes it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from hyperpod_kit.model.states import LifecycleMode, Role


@dataclass(frozen=True)
class Vpc:
    """Where the nodes live."""

    security_group_ids: Tuple[str, ...]
    subnet_ids: Tuple[str, ...]


@dataclass(frozen=True)
class UpdateRollout:
    """How an AMI update goes through a group. `batch`, `rollback_batch`: nodes at once, `2`, or `10%` of the group;
    `alarms`: names of CloudWatch alarms that undo it."""

    batch: Optional[str] = None
    rollback_batch: Optional[str] = None
    pause_seconds: Optional[int] = None
    alarms: Tuple[str, ...] = ()


@dataclass(frozen=True)
class AutoPatch:
    """Security patches that HyperPod applies by itself: `strategy` is WhenIdle or WhenAllIdle."""

    strategy: str
    next_patch_date: Optional[str] = None
    idle_wait_seconds: Optional[int] = None
    rollout: Optional[UpdateRollout] = None


@dataclass(frozen=True)
class ScheduledUpdate:
    """AMI updates by a clock. `schedule`: AWS's cron expression."""

    schedule: str
    rollout: Optional[UpdateRollout] = None


@dataclass(frozen=True)
class TieredStorage:
    """AWS's managed tiered checkpointing. `memory_percent`: of each node's memory."""

    mode: str
    memory_percent: Optional[int] = None


@dataclass(frozen=True)
class InstanceGroup:
    """One instance group. `role` is one of model.states.ROLES; `partition` only for compute groups.

    instance_type: "" where instance_types has several, the preferred one first; min_count: fewer running nodes than
    that after three hours undo the change; execution_role, vpc: where they are not the cluster's; ebs_gib: of a volume
    at /opt/sagemaker; capacity: Spot or OnDemand; api: further fields of CreateCluster's instance group.
    """

    name: str
    instance_type: str
    count: int
    role: str
    partition: Optional[str] = None
    min_count: Optional[int] = None
    threads_per_core: Optional[int] = None
    execution_role: Optional[str] = None
    vpc: Optional[Vpc] = None
    ebs_gib: Optional[int] = None
    ebs_kms_key: Optional[str] = None
    root_kms_key: Optional[str] = None
    deep_health_checks: Tuple[str, ...] = ()
    training_plan_arn: Optional[str] = None
    capacity: Optional[str] = None
    network_interface: Optional[str] = None
    auto_patch: Optional[AutoPatch] = None
    scheduled_update: Optional[ScheduledUpdate] = None
    instance_types: Tuple[str, ...] = ()
    api: Mapping[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> Tuple[str, ...]:
        """Every instance type that its nodes may have, the preferred one first."""
        return self.instance_types or (self.instance_type,)

    @property
    def types_key(self) -> str:
        """The key that says them."""
        if self.instance_types:
            return "instance_types"
        return "instance_type"


@dataclass(frozen=True)
class AccountingDatabase:
    """Slurm's accounting in a database outside of the cluster; the password is in Secrets Manager."""

    endpoint: str
    secret_arn: str
    port: Optional[int] = None
    name: Optional[str] = None


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that CreateCluster needs, besides the bundle's location.

    node_provisioning_mode: None is HyperPod's all-or-nothing; slurm_config_strategy: None is ours, Merge;
    api: further fields of CreateCluster.
    """

    name: str
    region: str
    execution_role: str
    groups: Tuple[InstanceGroup, ...]
    lifecycle_mode: str = LifecycleMode.ON_INIT_COMPLETE.value
    node_recovery: str = "Automatic"
    vpc: Optional[Vpc] = None
    tags: Tuple[Tuple[str, str], ...] = field(default=())
    node_provisioning_mode: Optional[str] = None
    slurm_config_strategy: Optional[str] = None
    accounting_database: Optional[AccountingDatabase] = None
    tiered_storage: Optional[TieredStorage] = None
    api: Mapping[str, Any] = field(default_factory=dict)

    @property
    def controller_group(self) -> str:
        """Name of the controller's group. Raises StopIteration when there is none (validation forbids it)."""
        return next(group.name for group in self.groups if group.role == Role.CONTROLLER)
