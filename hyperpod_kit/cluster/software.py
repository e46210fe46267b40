"""A newer AMI for nodes that are there: UpdateClusterSoftware swaps their root volumes and runs the lifecycle script.

Sources: the service model (batches by count or percentage, 0 to 3,600 s between two of them); "Update the SageMaker
HyperPod platform software of a cluster" (what lies on the root volumes is gone, and is to be saved beforehand).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.cluster.command_arguments import live_cluster_arguments
from hyperpod_kit.cluster.nodes import REMOVED_STATES
from hyperpod_kit.cluster.times import format_utc
from hyperpod_kit.errors import Absent, ClusterError, UsageError


@dataclass(frozen=True)
class NodeSoftware:
    """What runs on one node. `version`: of HyperPod's AMI, and `standing` AWS's word on it (UpToDate,
    UpdateAvailable, …), each "" where AWS does not say; `updated`: when the last update ended, in UTC, "" for never.
    """

    group: str
    instance_id: str
    version: str
    standing: str
    updated: str


@dataclass(frozen=True)
class Rollout:
    """How many nodes at once, and how many seconds between two batches; `count` and `percent` None: all at once."""

    count: Optional[int] = None
    percent: Optional[int] = None
    pause: int = 0

    def to_request(self) -> dict[str, Any]:
        """DeploymentConfig; empty for all at once."""
        if self.count is None and self.percent is None:
            return {}
        if self.count is not None:
            size = {"Type": "INSTANCE_COUNT", "Value": self.count}
        else:
            size = {"Type": "CAPACITY_PERCENTAGE", "Value": self.percent}
        return {"RollingUpdatePolicy": {"MaximumBatchSize": size}, "WaitIntervalInSeconds": self.pause}


def parse_rollout(batch_size: Optional[str], pause: int) -> Rollout:
    """Parse a batch size, `3` nodes or `10%` of a group. Raises UsageError."""
    if batch_size is None:
        if pause:
            raise UsageError("--pause needs --batch", hint="--batch 1, or --batch 10%")
        return Rollout()
    number = batch_size
    if batch_size.endswith("%"):
        number = batch_size[:-1]
    if not number.isascii() or not number.isdigit() or len(number) > 6 or int(number) < 1:
        raise UsageError(
            f"`{batch_size}` is not a batch size", hint="use a number of nodes such as 2, or a share such as 10%"
        )
    if not batch_size.endswith("%"):
        return Rollout(count=int(number), pause=pause)
    if int(number) > 100:
        raise UsageError(f"`{batch_size}` is more than all nodes", hint="use a share between 1% and 100%")
    return Rollout(percent=int(number), pause=pause)


def list_node_software(summaries: Sequence[Mapping[str, Any]]) -> list[NodeSoftware]:
    """List the software of the nodes of ListClusterNodes that are not on their way out, by group and id."""
    software = [
        NodeSoftware(
            str(node.get("InstanceGroupName", "")),
            str(node.get("InstanceId", "")),
            str(node.get("CurrentImageReleaseVersion", "")),
            str(node.get("ImageVersionStatus", "")),
            format_utc(node.get("LastSoftwareUpdateTime")),
        )
        for node in summaries
        if node.get("InstanceStatus", {}).get("Status") not in REMOVED_STATES
    ]
    return sorted(software, key=lambda entry: (entry.group, entry.instance_id))


def select_groups(live: Mapping[str, Any], selected: Sequence[str]) -> list[str]:
    """Groups that are updated: those named, or all of the cluster. Raises Absent for one that is not there."""
    existing = [str(group["InstanceGroupName"]) for group in live.get("InstanceGroups", [])]
    for name in selected:
        if name not in existing:
            raise Absent(f"cluster {live['ClusterName']} has no group `{name}`: expected one of {', '.join(existing)}")
    return [name for name in existing if not selected or name in selected]


def require_in_service(live: Mapping[str, Any]) -> None:
    """Raise ClusterError unless the cluster is in service: AWS updates no other."""
    if live.get("ClusterStatus") != "InService":
        name = live["ClusterName"]
        raise ClusterError(
            f"cluster {name} is {live.get('ClusterStatus')}: its software can only be updated when it is InService",
            hint=f"hyperpod-kit wait {live_cluster_arguments(live)}",
        )


def groups_by_lifecycle_script(live: Mapping[str, Any], groups: Sequence[str]) -> dict[str, list[str]]:
    """Return S3 URI of a lifecycle script -> groups whose nodes start with it; groups without one are
    left out."""
    groups_by_script: dict[str, list[str]] = {}
    for group in live.get("InstanceGroups", []):
        config = group.get("LifeCycleConfig") or {}
        entry = config.get("OnCreate") or config.get("OnInitComplete")
        if group["InstanceGroupName"] in groups and config.get("SourceS3Uri") and entry:
            uri = f"{str(config['SourceS3Uri']).rstrip('/')}/{entry}"
            groups_by_script.setdefault(uri, []).append(str(group["InstanceGroupName"]))
    return groups_by_script


def software_update_request(
    cluster: str, groups: Sequence[str], rollout: Rollout, image: Optional[str]
) -> dict[str, Any]:
    """Return the UpdateClusterSoftware request."""
    arguments: dict[str, Any] = {
        "ClusterName": cluster,
        "InstanceGroups": [{"InstanceGroupName": name} for name in groups],
    }
    if rollout.to_request():
        arguments["DeploymentConfig"] = rollout.to_request()
    if image is not None:
        arguments["ImageId"] = image
    return arguments


def instances_not_updated(before: Sequence[NodeSoftware], now: Sequence[NodeSoftware]) -> list[str]:
    """Return the instance ids of `before` that are still there and have not been updated since."""
    then = {entry.instance_id: entry.updated for entry in before}
    return [
        entry.instance_id for entry in now if entry.instance_id in then and entry.updated == then[entry.instance_id]
    ]
