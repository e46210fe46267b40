"""The Batch calls: which nodes are meant, which of them can be had, and what begins for each. Answers in API shapes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from hyperpod_rehearsal.platform import request_rules, scaling
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, ZONE, RehearsedCluster, RehearsedNode, instance_type
from hyperpod_rehearsal.platform.operations import Operations

REPLACE_OR_REBOOT = {"absent": "InstanceIdNotFound", "status": "InvalidInstanceStatus", "taken": "InstanceIdInUse"}
DELETE = {"absent": "NodeIdNotFound", "status": "InvalidNodeStatus", "taken": "NodeIdInUse"}
"""Why a node cannot be had -> the error code that the operation has for it."""

Refusal = Tuple[str, str]


def replace_nodes(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Execute BatchReplaceClusterNodes: claim the nodes and replace them in the background."""
    claimed, response = _claim_nodes(
        operations,
        cluster,
        request,
        REPLACE_OR_REBOOT,
        "ErrorCode",
        lambda node: "the controller cannot be replaced" if node.role == CONTROLLER else None,
    )
    for node in claimed:
        operations.run_in_background(operations.replace_node, cluster, node, "asked for: replace")
    return response


def reboot_nodes(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Execute BatchRebootClusterNodes: claim the nodes and reboot them in the background."""
    claimed, response = _claim_nodes(operations, cluster, request, REPLACE_OR_REBOOT, "ErrorCode", lambda node: None)
    for node in claimed:
        operations.run_in_background(operations.reboot_node, cluster, node, "asked for: reboot")
    return response


def delete_nodes(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Execute BatchDeleteClusterNodes.

    The groups' counts are lowered by their nodes; lists without content are left out of the response.
    """
    claimed, response = _claim_nodes(
        operations,
        cluster,
        request,
        DELETE,
        "Code",
        lambda node: "a Slurm controller cannot be deleted" if node.role == CONTROLLER else None,
    )
    if claimed:
        scaling.lower_counts_and_mark_shutting_down(operations, cluster, claimed)
        operations.run_in_background(scaling.remove_nodes_and_reconfigure, operations, cluster, claimed)
    return {name: content for name, content in response.items() if content}


def add_nodes(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Execute BatchAddClusterNodes.

    A request whose ClientToken was used before adds nothing and returns the same nodes.
    """
    request_rules.check_batch_add_request(cluster, request)
    token = request.get("ClientToken", "")
    with operations.lock:
        logical_ids = None
        if token:
            logical_ids = cluster.additions.get(token)
        if logical_ids is None:
            new_nodes: List[RehearsedNode] = []
            failed: List[Dict[str, Any]] = []
            for entry in request["NodesToAdd"]:
                refusal = _find_addition_error(cluster, entry)
                if refusal is None:
                    new_nodes += scaling.raise_count_and_add_nodes(
                        operations, cluster, entry["InstanceGroupName"], entry["IncrementTargetCountBy"]
                    )
                else:
                    failed.append(
                        {
                            "InstanceGroupName": entry["InstanceGroupName"],
                            "ErrorCode": refusal[0],
                            "FailedCount": entry["IncrementTargetCountBy"],
                            "Message": refusal[1],
                        }
                    )
            logical_ids = [node.logical_id for node in new_nodes]
            if token:
                cluster.additions[token] = logical_ids
            if new_nodes:
                operations.run_in_background(scaling.bring_up_nodes_and_reconfigure, operations, cluster, new_nodes)
        else:
            failed = []
        nodes = {node.logical_id: node for node in cluster.nodes.values()}
        successful = [
            {"NodeLogicalId": each, "InstanceGroupName": nodes[each].group, "Status": nodes[each].status}
            for each in logical_ids
            if each in nodes
        ]
    return {"Successful": successful, "Failed": failed}


def _find_addition_error(cluster: RehearsedCluster, entry: Mapping[str, Any]) -> Optional[Refusal]:
    """Return (error code, message) why no node can be added for one entry of NodesToAdd, None when it can."""
    name = entry["InstanceGroupName"]
    try:
        kind = instance_type(cluster.group(name))
    except KeyError:
        return "InstanceGroupNotFound", f"Instance group {name} not found."
    if ZONE not in entry.get("AvailabilityZones", [ZONE]):
        return "IncompatibleAvailabilityZones", f"The rehearsal's one zone is {ZONE}."
    if kind not in entry.get("InstanceTypes", [kind]):
        return "IncompatibleInstanceTypes", f"Instance group {name} has {kind}."
    return None


def _claim_nodes(
    operations: Operations,
    cluster: RehearsedCluster,
    request: Mapping[str, Any],
    error_codes: Mapping[str, str],
    code_member: str,
    rejection: Callable[[RehearsedNode], Optional[str]],
) -> Tuple[List[RehearsedNode], Dict[str, Any]]:
    """Claim the requested nodes; returns (nodes claimed, response).

    `error_codes`: problem -> code; `code_member`: the operation's name for the member with the code.
    """
    request_rules.check_node_selection(cluster, request)
    claimed: List[RehearsedNode] = []

    def claim(
        ids: Sequence[str], by_id: Mapping[str, RehearsedNode], member: str
    ) -> Tuple[List[str], List[Dict[str, str]]]:
        successful: List[str] = []
        failed: List[Dict[str, str]] = []
        for each in ids:
            node = by_id.get(each)
            if node is None:
                problem, message = "absent", "no such node in this cluster"
            elif rejection(node):
                problem, message = "status", rejection(node) or ""
            elif not operations.try_to_claim_node(node):
                problem, message = "taken", "another operation works on this node"
            else:
                claimed.append(node)
                successful.append(each)
                continue
            failed.append({member: each, code_member: error_codes[problem], "Message": message})
        return successful, failed

    with operations.lock:
        successful, failed = claim(request.get("NodeIds") or [], cluster.nodes, "NodeId")
        response: Dict[str, Any] = {"Successful": successful, "Failed": failed}
        if request.get("NodeLogicalIds"):
            logical = {node.logical_id: node for node in cluster.nodes.values()}
            response["SuccessfulNodeLogicalIds"], response["FailedNodeLogicalIds"] = claim(
                request["NodeLogicalIds"], logical, "NodeLogicalId"
            )
    return claimed, response
