"""What the control plane notes down about clusters that are provisioned continuously, in the words and shape of AWS."""

from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Mapping, Optional

from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode

INFO, WARN, ERROR = "Info", "Warn", "Error"
MAX_EVENTS = 1000
"""Events of one cluster; older ones go. AWS keeps them for a time that it does not tell."""


def record_event_if_continuous(
    cluster: RehearsedCluster,
    description: str,
    *,
    level: str = INFO,
    group: str = "",
    node: Optional[RehearsedNode] = None,
    metadata: Optional[Mapping[str, Any]] = None,
) -> None:
    """Append an event to a continuously provisioned cluster; other clusters have none.

    `metadata`: EventMetadata's member for the resource.
    """
    if not cluster.is_continuously_provisioned:
        return
    resource = "Cluster"
    if node is not None:
        resource = "Instance"
    elif group:
        resource = "InstanceGroup"
    event: Dict[str, Any] = {
        "EventId": str(uuid.uuid4()),
        "ClusterArn": cluster.arn,
        "ClusterName": cluster.name,
        "ResourceType": resource,
        "EventTime": time.time(),
        "Description": description,
        "EventLevel": level,
        "EventDetails": {"EventMetadata": {resource: dict(metadata or {})}},
    }
    if node is not None:
        event.update(InstanceGroupName=node.group, InstanceId=node.instance_id)
    elif group:
        event["InstanceGroupName"] = group
    cluster.events.append(event)
    del cluster.events[:-MAX_EVENTS]


def record_script_state(cluster: RehearsedCluster, node: RehearsedNode, state: str) -> None:
    """Record that the lifecycle script of a node has `Started` or `Succeeded`."""
    record_event_if_continuous(
        cluster,
        f"Instance lifecycle script execution for EC2InstanceId {node.instance_id} has {state}",
        node=node,
        metadata={"LcsExecutionState": state},
    )


def record_creation_failure(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """Record that a node could not be created; its message says why."""
    record_event_if_continuous(
        cluster,
        f"Instance creation in RehearsedCluster {cluster.name} and InstanceGroup {node.group} failed",
        level=ERROR,
        node=node,
        metadata={"FailureMessage": node.message, "LcsExecutionState": "Failed"},
    )


def record_replacement(cluster: RehearsedCluster, old: RehearsedNode, new: RehearsedNode, reason: str) -> None:
    """Record that a node is replaced by a new instance. AWS's own wording here and below is not known."""
    record_event_if_continuous(
        cluster,
        f"Instance {old.instance_id} in InstanceGroup {old.group} is being replaced by {new.instance_id}: {reason}",
        level=WARN,
        node=old,
    )


def record_reboot(cluster: RehearsedCluster, node: RehearsedNode, state: str, reason: str) -> None:
    """Record that the reboot of a node has `Started`, `Succeeded` or `Failed`."""
    record_event_if_continuous(
        cluster,
        f"Reboot of instance {node.instance_id} has {state}: {reason}",
        node=node,
        level=ERROR if state == "Failed" else INFO,
    )


def record_removal(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """Record that a node was deleted with its machine."""
    record_event_if_continuous(
        cluster, f"Instance {node.instance_id} in InstanceGroup {node.group} was deleted", node=node
    )


def record_software_update(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """Record that the software update of a node has succeeded."""
    record_event_if_continuous(cluster, f"Software update of instance {node.instance_id} has Succeeded", node=node)


def record_spot_notice(cluster: RehearsedCluster, node: RehearsedNode, ends_at: float) -> None:
    """Record that EC2 takes a Spot instance back. The wording is not known."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_at))
    record_event_if_continuous(
        cluster,
        f"Spot instance {node.instance_id} in InstanceGroup {node.group} will be interrupted at {at}",
        level=WARN,
        node=node,
    )


def record_patch(cluster: RehearsedCluster, group: str, state: str) -> None:
    """Record that the automatic patch of a group has begun or ended. The wording is not known."""
    record_event_if_continuous(cluster, f"Automatic patch of InstanceGroup {group} {state}", group=group)


def record_scaling(cluster: RehearsedCluster, group: str, before: int, after: int) -> None:
    """Record that the requested instance count of a group has changed."""
    record_event_if_continuous(
        cluster, f"Scaling of InstanceGroup {group} from {before} to {after} instances has Started", group=group
    )
