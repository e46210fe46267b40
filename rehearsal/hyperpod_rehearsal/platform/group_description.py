"""What DescribeCluster says of an instance group, and DescribeTrainingPlan of the plan that it names."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Mapping

from hyperpod_rehearsal.platform.cluster_operations import SCALING, groups_in_progress
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster

GROUP_FIELDS = (
    "InstanceGroupName",
    "InstanceType",
    "LifeCycleConfig",
    "ExecutionRole",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "OnStartDeepHealthChecks",
    "SlurmConfig",
    "OverrideVpcConfig",
    "TrainingPlanArn",
    "CapacityRequirements",
    "NetworkInterface",
    "ScheduledUpdateConfig",
)
"""Members of a request that come back as they were."""

DAY = 86400.0
PATCH_AFTER = 7 * DAY
"""Seconds from the cluster's creation to the first patch where no date is asked for. AWS's own rule is not known."""
PLAN_LASTS = 30 * DAY


def describe_group(cluster: RehearsedCluster, group: Mapping[str, Any]) -> Dict[str, Any]:
    """One of the InstanceGroups of DescribeCluster's answer. Call with the lock held."""
    name = group["InstanceGroupName"]
    running = [node for node in cluster.nodes_in_group(name) if node.status == "Running"]
    described = {field: group[field] for field in GROUP_FIELDS if field in group}
    if "MinInstanceCount" in group:
        described["MinCount"] = group["MinInstanceCount"]
    if "InstanceRequirements" in group:
        types = group["InstanceRequirements"]["InstanceTypes"]
        described["InstanceRequirements"] = {"CurrentInstanceTypes": types, "DesiredInstanceTypes": types}
        counts = Counter(node.instance_type for node in running)
        described["InstanceTypeDetails"] = [
            {"InstanceType": kind, "CurrentCount": count} for kind, count in sorted(counts.items())
        ]
    if "TrainingPlanArn" in group:
        described["TrainingPlanStatus"] = "Active"
    if "AutoPatchConfig" in group:
        described["AutoPatchConfig"] = _describe_patches(cluster, group["AutoPatchConfig"])
    if name in groups_in_progress(cluster, SCALING):
        described["ActiveOperations"] = {"Scaling": 1}
    update = cluster.software_updates.get(name)
    if update is not None:
        described["SoftwareUpdateStatus"] = update["status"]
        # New nodes always have the image that is wanted.
        described["TargetStateCount"] = sum(
            1 for node in running if max(node.updated_at, node.launched_at) >= update["begun_at"]
        )
    return {**described, "CurrentCount": len(running), "TargetCount": group.get("InstanceCount", 0)}


def capacity_type(group: Mapping[str, Any]) -> str:
    """CapacityType of the nodes of a group."""
    if "Spot" in group.get("CapacityRequirements", {}):
        return "Spot"
    return "OnDemand"


def describe_training_plan(clusters: Mapping[str, RehearsedCluster], name: str) -> Dict[str, Any] | None:
    """The answer of DescribeTrainingPlan: every plan that a group names is there, and active; None for another."""
    for cluster in clusters.values():
        for group in cluster.groups:
            arn = group.get("TrainingPlanArn", "")
            if arn and name in (arn, arn.rpartition("/")[2]):
                count = group.get("InstanceCount", 0)
                return {
                    "TrainingPlanArn": arn,
                    "TrainingPlanName": arn.rpartition("/")[2],
                    "Status": "Active",
                    "StartTime": cluster.created_at,
                    "EndTime": cluster.created_at + PLAN_LASTS,
                    "TotalInstanceCount": count,
                    "AvailableInstanceCount": 0,
                    "InUseInstanceCount": count,
                    "ReservedCapacitySummaries": [],
                }
    return None


def _describe_patches(cluster: RehearsedCluster, config: Mapping[str, Any]) -> Dict[str, Any]:
    described = {key: value for key, value in config.items() if key != "PatchSchedule"}
    requested = config.get("PatchSchedule", {}).get("NextPatchDate")
    date = requested
    if date is None:
        date = cluster.created_at + PATCH_AFTER
    described["CurrentPatchSchedule"] = {"NextPatchDate": date}
    return described
