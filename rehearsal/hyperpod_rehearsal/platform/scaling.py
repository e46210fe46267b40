"""Instance groups that grow and shrink: by UpdateCluster, or by the nodes that a caller adds and deletes."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_rehearsal.platform import cluster_operations, events, slurm_conf
from hyperpod_rehearsal.platform.bundle_source import read_provisioning_parameters
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.operations import Operations, memory_mb_per_node


def apply_cluster_update(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Apply an UpdateCluster request: groups grow, shrink, come and go; the cluster is Updating meanwhile.

    Where nodes are provisioned continuously it stays InService, and a node that fails fails no update.
    """
    with operations.lock:
        if cluster.status != ("InService" if cluster.is_continuously_provisioned else "Updating"):
            return
        groups = {group["InstanceGroupName"]: group for group in cluster.groups}
        groups.update({group["InstanceGroupName"]: dict(group) for group in request.get("InstanceGroups", [])})
        for name in request.get("InstanceGroupsToDelete", []):
            groups.pop(name, None)
        before = {group["InstanceGroupName"]: group.get("InstanceCount", 0) for group in cluster.groups}
        cluster.request["InstanceGroups"] = list(groups.values())
        for field in ("NodeRecovery", "Orchestrator", "NodeProvisioningMode", "TieredStorageConfig"):
            if field in request:
                cluster.request[field] = request[field]
        limits = {name: group.get("InstanceCount", 0) for name, group in groups.items()}
        leaving = [
            node
            for name in {node.group for node in cluster.nodes.values()}
            for node in cluster.nodes_in_group(name)[limits.get(name, 0) :]
        ]
        for node in leaving:
            operations.claimed_ids.add(node.instance_id)
            node.status = "ShuttingDown"
        if cluster.slurm:
            parameters = read_provisioning_parameters(operations.store, cluster.request)
            cluster.slurm, cluster.partitions = slurm_conf.slurm_node_types_and_partitions(cluster.request, parameters)
        arriving = [
            node
            for group in cluster.groups
            for node in operations.add_missing_nodes(cluster, group, group.get("InstanceCount", 0))
        ]
        scaling = _record_scaling(cluster, before, limits)
    failure = _remove_and_launch_nodes_returning_error(operations, cluster, leaving, arriving)
    with operations.lock:
        _end_scaling(cluster, scaling)
        if cluster.status == "Updating":
            cluster.status, cluster.failure_message = "InService", failure


def raise_count_and_add_nodes(
    operations: Operations, cluster: RehearsedCluster, group_name: str, increment: int
) -> List[RehearsedNode]:
    """Raise the count of a group; return its new nodes, which `bring_up_nodes_and_reconfigure` boots.

    Call it with the lock held.
    """
    group = cluster.group(group_name)
    before = group.get("InstanceCount", 0)
    group["InstanceCount"] = before + increment
    _record_scaling(cluster, {group_name: before}, {group_name: before + increment})
    return operations.add_missing_nodes(cluster, group, len(cluster.nodes_in_group(group_name)) + increment)


def bring_up_nodes_and_reconfigure(
    operations: Operations, cluster: RehearsedCluster, arriving: Sequence[RehearsedNode]
) -> None:
    """Boot nodes that `raise_count_and_add_nodes` has added."""
    _remove_and_launch_nodes_returning_error(operations, cluster, [], arriving)
    _end_scalings_of_groups(operations, cluster, {node.group for node in arriving})


def lower_counts_and_mark_shutting_down(
    operations: Operations, cluster: RehearsedCluster, leaving: Sequence[RehearsedNode]
) -> None:
    """Lower the counts of the groups of claimed nodes and mark the nodes ShuttingDown: none is brought back."""
    with operations.lock:
        before = {node.group: cluster.group(node.group).get("InstanceCount", 0) for node in leaving}
        for node in leaving:
            cluster.group(node.group)["InstanceCount"] -= 1
            node.status = "ShuttingDown"
        _record_scaling(cluster, before, {name: cluster.group(name)["InstanceCount"] for name in before})


def remove_nodes_and_reconfigure(
    operations: Operations, cluster: RehearsedCluster, leaving: Sequence[RehearsedNode]
) -> None:
    """End the machines of nodes that `lower_counts_and_mark_shutting_down` has taken out."""
    _remove_and_launch_nodes_returning_error(operations, cluster, leaving, [])
    _end_scalings_of_groups(operations, cluster, {node.group for node in leaving})


def _remove_and_launch_nodes_returning_error(
    operations: Operations,
    cluster: RehearsedCluster,
    leaving: Sequence[RehearsedNode],
    arriving: Sequence[RehearsedNode],
) -> str:
    """Remove and launch nodes, rewrite the configs of the others, reconfigure Slurm.

    Returns the message of a failure, "" when there was none.
    """
    operations.changed()
    try:
        for node in leaving:
            operations.slurm.mark_down(cluster, node)
            operations.fleet.remove(node)
            with operations.lock:
                cluster.nodes.pop(node.instance_id, None)
                operations.claimed_ids.discard(node.instance_id)
                operations.freed_addresses.append(node.ip)
            events.record_removal(cluster, node)
        operations.fleet.rewrite_cluster_configs(cluster, memory_mb_per_node(len(cluster.nodes)))
        if leaving or arriving:
            operations.slurm.restart_slurmctld_and_reconfigure(cluster)
        operations.launch_and_wait_for_required(
            cluster, arriving, [] if cluster.is_continuously_provisioned else arriving
        )
    except HyperpodKitError as err:
        return err.message
    return ""


def _end_scaling(cluster: RehearsedCluster, scaling: str) -> None:
    if scaling:
        cluster_operations.end_operation(cluster, scaling)


def _end_scalings_of_groups(operations: Operations, cluster: RehearsedCluster, groups: Set[str]) -> None:
    with operations.lock:
        for operation in cluster.operations:
            details = operation.get("ScalingDetails", ())
            if details and {entry["InstanceGroupName"] for entry in details} <= groups:
                cluster_operations.end_operation(cluster, operation["OperationId"])


def _record_scaling(cluster: RehearsedCluster, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Record events and an operation; returns the id of the operation, "" where no count changes."""
    changed: Dict[str, tuple[int, int]] = {
        name: (before.get(name, 0), after.get(name, 0))
        for name in {**before, **after}
        if before.get(name, 0) != after.get(name, 0)
    }
    for name, (old, new) in changed.items():
        events.record_scaling(cluster, name, old, new)
    if not changed:
        return ""
    return cluster_operations.begin_scaling(cluster, before, {name: new for name, (_, new) in changed.items()})
