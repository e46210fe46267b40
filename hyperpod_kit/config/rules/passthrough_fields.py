"""`api`: fields of CreateCluster that go into the request as they are."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import LifecycleMode

COVERED_FIELDS = {
    "ClusterName": "name",
    "InstanceGroups": "instance_groups",
    "NodeRecovery": "node_recovery",
    "VpcConfig": "vpc",
    "Orchestrator": "lifecycle_mode, slurm_config_strategy and accounting_database",
    "NodeProvisioningMode": "node_provisioning_mode",
    "Tags": "tags",
}
COVERED_GROUP_FIELDS = {
    "InstanceGroupName": "name",
    "InstanceType": "instance_type",
    "InstanceRequirements": "instance_type",
    "InstanceCount": "count",
    "MinInstanceCount": "min_count",
    "ExecutionRole": "execution_role",
    "LifeCycleConfig": "lifecycle_mode of the cluster",
    "SlurmConfig": "controller_group, login_group and worker_groups",
    "InstanceStorageConfigs": "ebs_gib, root_kms_key and hyperpod_kit.mounts",
    "ThreadsPerCore": "threads_per_core",
    "TrainingPlanArn": "training_plan_arn",
    "OverrideVpcConfig": "vpc",
    "OnStartDeepHealthChecks": "deep_health_checks",
}
"""Field of the request -> the key that it comes from."""

FOR_EKS = ("AutoScaling", "ClusterRole", "RestrictedInstanceGroups", "RestrictedInstanceGroupsConfig",
           "TieredStorageConfig", "KubernetesConfig")  # fmt: skip
"""Fields whose documentation speaks of clusters on EKS only."""

IMAGES = ("ImageId", "ImageReleaseVersion")


def check_passthrough_fields_and_images(settings: Settings) -> Iterator[Finding]:
    """No field has two sources, and what is not for Slurm clusters is named."""
    cluster = settings.cluster
    yield from _report_covered_and_eks_fields(f"{AT}.api", cluster.api, COVERED_FIELDS)
    for index, group in enumerate(cluster.groups):
        at = f"{AT}.instance_groups[{index}].api"
        yield from _report_covered_and_eks_fields(at, group.api, COVERED_GROUP_FIELDS)
        for key in IMAGES:
            if group.api.get(key, "default") != "default" and cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
                yield Finding(
                    "HPK-R003",
                    f"{at}.{key}",
                    "a fixed image has to be of January 2026 or newer: HyperPod configures Slurm by itself on those "
                    "only, and says `Update required to use SlurmConfig in InstanceGroups` on others",
                    "Check its date, or remove the key for the newest image",
                    WARNING,
                )


def _report_covered_and_eks_fields(at: str, given: Mapping[str, Any], covered: Mapping[str, str]) -> Iterator[Finding]:
    for key in given:
        if key in covered:
            yield Finding("HPK-R001", f"{at}.{key}", "this field comes from a key of its own", f"Use {covered[key]}")
        elif key in FOR_EKS:
            yield Finding(
                "HPK-R002",
                f"{at}.{key}",
                "AWS documents it for clusters on EKS, and says nothing about Slurm",
                "Try it on a small cluster first",
                WARNING,
            )
