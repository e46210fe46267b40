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
from hyperpod_kit.model.cluster import ClusterSpec, InstanceGroup, Vpc
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
        "InstanceType": group.instance_type,
        "InstanceCount": group.count,
        "ExecutionRole": settings.cluster.execution_role if group.execution_role is None else group.execution_role,
        **_without_none(
            MinInstanceCount=group.min_count,
            ThreadsPerCore=group.threads_per_core,
            TrainingPlanArn=group.training_plan_arn,
            OverrideVpcConfig=None if group.vpc is None else _vpc_config(group.vpc),
            OnStartDeepHealthChecks=list(group.deep_health_checks) or None,
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
