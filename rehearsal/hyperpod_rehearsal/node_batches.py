"""The Batch calls: which nodes are meant, which of them can be had, and what begins for each. Answers in API shapes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from hyperpod_rehearsal import request_rules, scaling
from hyperpod_rehearsal.cluster_state import CONTROLLER, ZONE, RehearsedCluster, RehearsedNode, instance_type
from hyperpod_rehearsal.operations import Operations

REPLACE_OR_REBOOT = {"absent": "InstanceIdNotFound", "status": "InvalidInstanceStatus", "taken": "InstanceIdInUse"}
DELETE = {"absent": "NodeIdNotFound", "status": "InvalidNodeStatus", "taken": "NodeIdInUse"}
"""Why a node cannot be had -> the error code that the operation has for it."""

Refusal = Tuple[str, str]


def replace(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """BatchReplaceClusterNodes."""
    taken, answer = _choose(
        operations,
        cluster,
        request,
        REPLACE_OR_REBOOT,
        "ErrorCode",
        lambda node: "the controller cannot be replaced" if node.role == CONTROLLER else None,
    )
    for node in taken:
        operations.spawn(operations.replace, cluster, node, "asked for: replace")
    return answer


def reboot(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """BatchRebootClusterNodes."""
    taken, answer = _choose(operations, cluster, request, REPLACE_OR_REBOOT, "ErrorCode", lambda node: None)
    for node in taken:
        operations.spawn(operations.reboot, cluster, node, "asked for: reboot")
    return answer


def delete(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """BatchDeleteClusterNodes. The groups' counts go down with their nodes; lists without content are left out."""
    taken, answer = _choose(
        operations,
        cluster,
        request,
        DELETE,
        "Code",
        lambda node: "a Slurm controller cannot be deleted" if node.role == CONTROLLER else None,
    )
    if taken:
        scaling.forget(operations, cluster, taken)
        operations.spawn(scaling.drop, operations, cluster, taken)
    return {name: content for name, content in answer.items() if content}


def add(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> Dict[str, Any]:
    """BatchAddClusterNodes; a request with a ClientToken that is known adds nothing and tells of the same nodes."""
    request_rules.check_addition(cluster, request)
    token = request.get("ClientToken", "")
    with operations.lock:
        known = cluster.additions.get(token) if token else None
        if known is None:
            made: List[RehearsedNode] = []
            failed: List[Dict[str, Any]] = []
            for entry in request["NodesToAdd"]:
                refusal = _misfit(cluster, entry)
                if refusal is None:
                    made += scaling.grow(
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
            known = [node.logical_id for node in made]
            if token:
                cluster.additions[token] = known
            if made:
                operations.spawn(scaling.bring_up, operations, cluster, made)
        else:
            failed = []
        nodes = {node.logical_id: node for node in cluster.nodes.values()}
        successful = [
            {"NodeLogicalId": each, "InstanceGroupName": nodes[each].group, "Status": nodes[each].status}
            for each in known
            if each in nodes
        ]
    return {"Successful": successful, "Failed": failed}


def _misfit(cluster: RehearsedCluster, entry: Mapping[str, Any]) -> Optional[Refusal]:
    """Why no node can be added for one entry of NodesToAdd: (error code, words)."""
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


def _choose(
    operations: Operations,
    cluster: RehearsedCluster,
    request: Mapping[str, Any],
    codes: Mapping[str, str],
    code: str,
    unfit: Callable[[RehearsedNode], Optional[str]],
) -> Tuple[List[RehearsedNode], Dict[str, Any]]:
    """(nodes that are now ours, the answer). `code`: what the operation calls the member with the error's code."""
    request_rules.check_nodes(cluster, request)
    taken: List[RehearsedNode] = []

    def look(
        ids: Sequence[str], known: Mapping[str, RehearsedNode], member: str
    ) -> Tuple[List[str], List[Dict[str, str]]]:
        successful: List[str] = []
        failed: List[Dict[str, str]] = []
        for each in ids:
            node = known.get(each)
            if node is None:
                why, words = "absent", "no such node in this cluster"
            elif unfit(node):
                why, words = "status", unfit(node) or ""
            elif not operations.take(node):
                why, words = "taken", "another operation works on this node"
            else:
                taken.append(node)
                successful.append(each)
                continue
            failed.append({member: each, code: codes[why], "Message": words})
        return successful, failed

    with operations.lock:
        successful, failed = look(request.get("NodeIds") or [], cluster.nodes, "NodeId")
        answer: Dict[str, Any] = {"Successful": successful, "Failed": failed}
        if request.get("NodeLogicalIds"):
            logical = {node.logical_id: node for node in cluster.nodes.values()}
            answer["SuccessfulNodeLogicalIds"], answer["FailedNodeLogicalIds"] = look(
                request["NodeLogicalIds"], logical, "NodeLogicalId"
            )
    return taken, answer
