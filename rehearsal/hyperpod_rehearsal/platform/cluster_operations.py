"""Operations of a cluster as ListClusterOperations and DescribeClusterOperation tell them: scalings, health checks.

A new scaling of a group supersedes one that has not ended. AWS's own rule for that is not written down.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Dict, List, Mapping, Sequence, Set

from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster

SCALING, HEALTH_CHECK = "Scaling", "DeepHealthCheck"
IN_PROGRESS, SUPERSEDED, DONE = "InProgress", "Superseded", "Done"
MAX_OPERATIONS = 200
"""Of one cluster; older ones go."""


def begin_scaling(cluster: RehearsedCluster, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Record a scaling of these groups, nodes before and after; returns its id. Call with the lock held."""
    for operation in cluster.operations:
        if operation["Type"] == SCALING and operation["Status"] == IN_PROGRESS:
            names = {entry["InstanceGroupName"] for entry in operation["ScalingDetails"]}
            if names & set(after):
                _set_status(operation, SUPERSEDED)
    details = []
    for name, count in after.items():
        running = len([node for node in cluster.nodes_in_group(name) if node.status == "Running"])
        details.append(
            {
                "InstanceGroupName": name,
                "Status": IN_PROGRESS,
                "Original": {"CurrentCount": running, "TargetCount": before.get(name, 0)},
                "Desired": {"CurrentCount": count, "TargetCount": count},
            }
        )
    return _append(cluster, {"Type": SCALING, "ScalingDetails": details})


def begin_health_check(cluster: RehearsedCluster, configurations: Sequence[Mapping[str, Any]]) -> str:
    """Record a run of deep health checks; returns its id. Call with the lock held."""
    return _append(cluster, {"Type": HEALTH_CHECK, "DeepHealthCheckDetails": [dict(entry) for entry in configurations]})


def end_operation(cluster: RehearsedCluster, operation_id: str) -> None:
    """An operation has ended; one that was superseded stays so. Call with the lock held."""
    for operation in cluster.operations:
        if operation["OperationId"] == operation_id and operation["Status"] == IN_PROGRESS:
            _set_status(operation, DONE)


def groups_in_progress(cluster: RehearsedCluster, kind: str) -> Set[str]:
    """Names of the groups that a scaling in progress is about."""
    return {
        entry["InstanceGroupName"]
        for operation in cluster.operations
        if operation["Type"] == kind and operation["Status"] == IN_PROGRESS
        for entry in operation.get("ScalingDetails", ())
    }


def describe_operations(cluster: RehearsedCluster) -> List[Dict[str, Any]]:
    """All of them in DescribeClusterOperation's shape, oldest first."""
    return [{**operation, "ClusterArn": cluster.arn} for operation in cluster.operations]


def _append(cluster: RehearsedCluster, operation: Dict[str, Any]) -> str:
    operation_id = str(uuid.uuid4())
    cluster.operations.append(
        {"OperationId": operation_id, "Status": IN_PROGRESS, "CreationTime": time.time(), **operation}
    )
    del cluster.operations[:-MAX_OPERATIONS]
    return operation_id


def _set_status(operation: Dict[str, Any], status: str) -> None:
    operation["Status"] = status
    for entry in operation.get("ScalingDetails", ()):
        entry["Status"] = status
