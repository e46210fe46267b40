"""StartClusterHealthCheck: nodes are reserved in Slurm, tested, and given back.

There is no hardware to test: every check passes after CHECK_SECONDS. "Deep health checks" of AWS's guide: affected
nodes are in a Slurm maintenance reservation meanwhile, and DescribeClusterNode shows how it stands.
"""

from __future__ import annotations

from typing import Any, List, Mapping

from hyperpod_rehearsal.platform import cluster_operations
from hyperpod_rehearsal.platform.cluster_state import COMPUTE, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.operations import Operations
from hyperpod_rehearsal.sagemaker.api import ApiError

CHECKING = "DeepHealthCheckInProgress"
CHECK_SECONDS = 5.0
"""AWS's checks take an hour or more."""


def start_health_check(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Claim the nodes, mark them, and check them in the background. Raises ApiError; its wording is not AWS's."""
    configurations = request["DeepHealthCheckConfigurations"]
    with operations.lock:
        chosen = [node for entry in configurations for node in _nodes_of(cluster, entry)]
        nodes = list({node.instance_id: node for node in chosen}.values())
        claimed = [node for node in nodes if node.status == "Running" and operations.try_to_claim_node(node)]
        busy = [node.instance_id for node in nodes if node not in claimed]
        if busy:
            operations.claimed_ids.difference_update(node.instance_id for node in claimed)
            raise ApiError("ConflictException", f"Instances {', '.join(busy)} are in use by another operation.")
        for node in nodes:
            node.status = CHECKING
        operation_id = cluster_operations.begin_health_check(cluster, configurations)
    operations.changed()
    operations.run_in_background(_check_nodes, operations, cluster, nodes, operation_id)


def _nodes_of(cluster: RehearsedCluster, entry: Mapping[str, Any]) -> List[RehearsedNode]:
    name = entry["InstanceGroupName"]
    if name not in [group["InstanceGroupName"] for group in cluster.groups]:
        raise ApiError("ResourceNotFound", f"Instance group {name} not found.")
    if cluster.slurm and cluster.slurm.get(name) != COMPUTE:
        raise ApiError("ValidationException", f"Deep health checks are for compute nodes; {name} has none.")
    nodes = cluster.nodes_in_group(name)
    ids = entry.get("InstanceIds")
    if ids is None:
        return nodes
    by_id = {node.instance_id: node for node in nodes}
    missing = [instance_id for instance_id in ids if instance_id not in by_id]
    if missing:
        raise ApiError("ResourceNotFound", f"Instances {', '.join(missing)} are not in instance group {name}.")
    return [by_id[instance_id] for instance_id in ids]


def _check_nodes(
    operations: Operations, cluster: RehearsedCluster, nodes: List[RehearsedNode], operation_id: str
) -> None:
    reservation = f"hyperpod-health-check-{operation_id[:8]}"
    operations.slurm.reserve_nodes(cluster, nodes, reservation)
    try:
        operations.fleet.stopping.wait(CHECK_SECONDS)
    finally:
        operations.slurm.end_reservation(cluster, reservation)
        with operations.lock:
            for node in nodes:
                operations.claimed_ids.discard(node.instance_id)
                if node.status == CHECKING:
                    node.status = "Running"
            cluster_operations.end_operation(cluster, operation_id)
