"""What the control plane notes down about clusters that are provisioned continuously, in the words and shape of AWS."""

from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Mapping, Optional

from hyperpod_rehearsal.cluster_state import RehearsedCluster, RehearsedNode

INFO, WARN, ERROR = "Info", "Warn", "Error"
KEPT = 1000
"""Events of one cluster; older ones go. AWS keeps them for a time that it does not tell."""


def note(
    cluster: RehearsedCluster,
    description: str,
    *,
    level: str = INFO,
    group: str = "",
    node: Optional[RehearsedNode] = None,
    metadata: Optional[Mapping[str, Any]] = None,
) -> None:
    """Add an event to a Continuous cluster; others have none. `metadata`: EventMetadata's member for the resource."""
    if not cluster.continuous:
        return
    resource = "Instance" if node is not None else "InstanceGroup" if group else "Cluster"
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
    del cluster.events[:-KEPT]


def script(cluster: RehearsedCluster, node: RehearsedNode, state: str) -> None:
    """The lifecycle script of a node has `Started` or `Succeeded`."""
    note(
        cluster,
        f"Instance lifecycle script execution for EC2InstanceId {node.instance_id} has {state}",
        node=node,
        metadata={"LcsExecutionState": state},
    )


def failed(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """A node could not be created; its message says why."""
    note(
        cluster,
        f"Instance creation in RehearsedCluster {cluster.name} and InstanceGroup {node.group} failed",
        level=ERROR,
        node=node,
        metadata={"FailureMessage": node.message, "LcsExecutionState": "Failed"},
    )


def replaced(cluster: RehearsedCluster, old: RehearsedNode, new: RehearsedNode, why: str) -> None:
    """A node gives way to a new instance. AWS's own words for this and what follows are not known."""
    note(
        cluster,
        f"Instance {old.instance_id} in InstanceGroup {old.group} is being replaced by {new.instance_id}: {why}",
        level=WARN,
        node=old,
    )


def rebooted(cluster: RehearsedCluster, node: RehearsedNode, state: str, why: str) -> None:
    """The reboot of a node has `Started`, `Succeeded` or `Failed`."""
    note(
        cluster,
        f"Reboot of instance {node.instance_id} has {state}: {why}",
        node=node,
        level=ERROR if state == "Failed" else INFO,
    )


def removed(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """A node has left with its machine."""
    note(cluster, f"Instance {node.instance_id} in InstanceGroup {node.group} was deleted", node=node)


def software(cluster: RehearsedCluster, node: RehearsedNode) -> None:
    """A node has its new software."""
    note(cluster, f"Software update of instance {node.instance_id} has Succeeded", node=node)


def scaled(cluster: RehearsedCluster, group: str, before: int, after: int) -> None:
    """The wanted count of a group has changed."""
    note(cluster, f"Scaling of InstanceGroup {group} from {before} to {after} instances has Started", group=group)
