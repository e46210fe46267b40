"""Settings -> what AWS takes: the CreateCluster request and, in on_create mode, AWS's provisioning_parameters.json.

| mode             | LifeCycleConfig      | Slurm set up by           | FSx mounted by                 |
| on_create        | OnCreate             | our script, legacy file   | our script                     |
| on_init_complete | OnInitComplete       | HyperPod, from SlurmConfig| HyperPod, InstanceStorageConfigs |
| ami_only         | none                 | HyperPod, from SlurmConfig| HyperPod, InstanceStorageConfigs |
"""

from __future__ import annotations

import json
from typing import Any, Optional

from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.cluster import (
    AutoPatch,
    ClusterSpec,
    InstanceGroup,
    ScheduledUpdate,
    UpdateRollout,
    Vpc,
)
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import LifecycleMode, Role

NODE_TYPES: dict[str, str] = {Role.CONTROLLER: "Controller", Role.LOGIN: "Login", Role.COMPUTE: "Compute"}

SLURM_CONFIG_STRATEGY = "Merge"
"""`Managed` calls our hooks in slurm.conf a drift and fails updates.

AWS's pages disagree on the default, so it is always said; but for a cluster with continuous provisioning, which merges
and refuses any word about it.
"""


def build_create_cluster_request(settings: Settings, source_s3_uri: str) -> dict[str, Any]:
    """The CreateCluster request.

    `source_s3_uri`: the uploaded bundle, with a slash at the end; unused in ami_only mode.
    """
    cluster = settings.cluster
    request: dict[str, Any] = {
        "ClusterName": cluster.name,
        "InstanceGroups": [_instance_group_entry(settings, group, source_s3_uri) for group in cluster.groups],
        "NodeRecovery": cluster.node_recovery,
    }
    if cluster.vpc is not None:
        request["VpcConfig"] = _vpc_config(cluster.vpc)
    if cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
        request["Orchestrator"] = {"Slurm": _slurm_orchestrator(cluster)}
    if cluster.node_provisioning_mode is not None:
        request["NodeProvisioningMode"] = cluster.node_provisioning_mode
    tiered = cluster.tiered_storage
    if tiered is not None:
        request["TieredStorageConfig"] = _without_none(
            Mode=tiered.mode, InstanceMemoryAllocationPercentage=tiered.memory_percent
        )
    if cluster.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in cluster.tags]
    return {**cluster.api, **request}


def _slurm_orchestrator(cluster: ClusterSpec) -> dict[str, Any]:
    slurm: dict[str, Any] = {}
    if cluster.node_provisioning_mode is None or cluster.slurm_config_strategy is not None:
        slurm["SlurmConfigStrategy"] = cluster.slurm_config_strategy or SLURM_CONFIG_STRATEGY
    database = cluster.accounting_database
    if database is not None:
        slurm["AccountingDatabase"] = _without_none(
            Endpoint=database.endpoint, Port=database.port, Name=database.name, SecretArn=database.secret_arn
        )
    return slurm


def _vpc_config(vpc: Vpc) -> dict[str, Any]:
    return {"SecurityGroupIds": list(vpc.security_group_ids), "Subnets": list(vpc.subnet_ids)}


def _without_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def provisioning_parameters_json_if_on_create(settings: Settings) -> Optional[str]:
    """AWS's file for on_create mode, AWS's keys only; None in the other modes, where HyperPod would refuse it."""
    if settings.cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
        return None
    given = settings.parameters
    data: dict[str, Any] = {
        "version": given.version,
        "workload_manager": given.workload_manager,
        "controller_group": given.controller_group,
        "worker_groups": [
            {"instance_group_name": worker.instance_group_name, "partition_name": worker.partition_name}
            for worker in given.worker_groups
        ],
        **given.passthrough,
    }
    for key, value in (
        ("login_group", given.login_group),
        ("fsx_dns_name", given.fsx_dns_name),
        ("fsx_mountname", given.fsx_mountname),
    ):
        if value is not None:
            data[key] = value
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _instance_group_entry(settings: Settings, group: InstanceGroup, source_s3_uri: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "InstanceGroupName": group.name,
        **_instance_types(group),
        "InstanceCount": group.count,
        "ExecutionRole": settings.cluster.execution_role if group.execution_role is None else group.execution_role,
        **_without_none(
            MinInstanceCount=group.min_count,
            ThreadsPerCore=group.threads_per_core,
            TrainingPlanArn=group.training_plan_arn,
            OverrideVpcConfig=None if group.vpc is None else _vpc_config(group.vpc),
            OnStartDeepHealthChecks=list(group.deep_health_checks) or None,
            CapacityRequirements=None if group.capacity is None else {group.capacity: {}},
            NetworkInterface=None if group.network_interface is None else {"InterfaceType": group.network_interface},
            AutoPatchConfig=None if group.auto_patch is None else _auto_patch_config(group.auto_patch),
            ScheduledUpdateConfig=None if group.scheduled_update is None else _scheduled_update(group.scheduled_update),
        ),
    }
    mode = settings.cluster.lifecycle_mode
    if mode != LifecycleMode.AMI_ONLY:
        hook = "OnInitComplete"
        if mode == LifecycleMode.ON_CREATE:
            hook = "OnCreate"
        entry["LifeCycleConfig"] = {"SourceS3Uri": source_s3_uri, hook: settings.entry_script}
    storage = _ebs_volume_configs(group)
    if mode != LifecycleMode.ON_CREATE:
        entry["SlurmConfig"] = {"NodeType": NODE_TYPES[group.role]}
        if group.partition is not None and group.role == Role.COMPUTE:
            entry["SlurmConfig"]["PartitionNames"] = [group.partition]
        storage += [
            _mount_storage_config(mount)
            for mount, _ in settings.all_mounts_with_platform_flag
            if mount.is_carried_by(group.role, group.name) and mount.platform
        ]
    if storage:
        entry["InstanceStorageConfigs"] = storage
    return {**group.api, **entry}


def _instance_types(group: InstanceGroup) -> dict[str, Any]:
    if group.instance_types:
        return {"InstanceRequirements": {"InstanceTypes": list(group.instance_types)}}
    return {"InstanceType": group.instance_type}


def _auto_patch_config(patch: AutoPatch) -> dict[str, Any]:
    schedule = None
    if patch.next_patch_date is not None:
        schedule = {"NextPatchDate": patch.next_patch_date}
    return _without_none(
        PatchingStrategy=patch.strategy,
        PatchSchedule=schedule,
        IdleWaitWindowInSeconds=patch.idle_wait_seconds,
        DeploymentConfig=_deployment_config(patch.rollout),
    )


def _scheduled_update(update: ScheduledUpdate) -> dict[str, Any]:
    return _without_none(
        ScheduleExpression=update.schedule,
        DeploymentConfig=_deployment_config(update.rollout),
    )


def _deployment_config(rollout: Optional[UpdateRollout]) -> Optional[dict[str, Any]]:
    if rollout is None:
        return None
    policy = _without_none(
        MaximumBatchSize=_batch_size(rollout.batch), RollbackMaximumBatchSize=_batch_size(rollout.rollback_batch)
    )
    return _without_none(
        RollingUpdatePolicy=policy or None,
        WaitIntervalInSeconds=rollout.pause_seconds,
        AutoRollbackConfiguration=[{"AlarmName": name} for name in rollout.alarms] or None,
    )


def _batch_size(batch: Optional[str]) -> Optional[dict[str, Any]]:
    """AWS's form of `2` nodes or `10%` of a group; as it is where it is neither, which a rule reports."""
    if batch is None:
        return None
    number = batch.removesuffix("%")
    value: Any = batch
    if number.isascii() and number.isdigit():
        value = int(number)
    kind = "INSTANCE_COUNT"
    if batch.endswith("%"):
        kind = "CAPACITY_PERCENTAGE"
    return {"Type": kind, "Value": value}


def _ebs_volume_configs(group: InstanceGroup) -> list[dict[str, Any]]:
    """EBS: the second volume, and the root volume where it has a key of one's own (its size is HyperPod's choice)."""
    volumes = []
    if group.root_kms_key is not None:
        volumes.append({"EbsVolumeConfig": {"RootVolume": True, "VolumeKmsKeyId": group.root_kms_key}})
    if group.ebs_gib is not None:
        volume = _without_none(VolumeSizeInGB=group.ebs_gib, VolumeKmsKeyId=group.ebs_kms_key)
        volumes.append({"EbsVolumeConfig": volume})
    return volumes


def _mount_storage_config(mount: Mount) -> dict[str, Any]:
    config = FORMS[mount.kind].storage_config
    assert config is not None, f"HyperPod mounts no {mount.kind}"
    given = {key: getattr(mount, field) for key, field in config.keys.items()}
    return {mount.traits.storage_config: {**given, "MountPath": mount.path}}
