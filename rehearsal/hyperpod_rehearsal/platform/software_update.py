"""UpdateClusterSoftware: every node gets a fresh root volume from the image and is set up anew.

Instance, address and place stay, what was on the root volume is gone, and the lifecycle scripts run as at creation:
so AWS's documentation of the backup that it asks for beforehand is read here. A rehearsal has one image, so that the
software that comes is the one that was.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Mapping, Sequence

from hyperpod_rehearsal.platform import events
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.operations import Operations, error_message, failure_message, memory_mb_per_node

UPDATING = "SystemUpdating"


def update_software(operations: Operations, cluster: RehearsedCluster, request: Mapping[str, Any]) -> None:
    """Update the groups that are named, or all; the cluster is SystemUpdating meanwhile and InService afterwards.

    Batch after batch where a RollingUpdatePolicy says so, the controller first; the first batch with a failure is the
    last one, and its reason becomes the FailureMessage.
    """
    groups = {group["InstanceGroupName"] for group in request.get("InstanceGroups") or cluster.groups}
    with operations.lock:
        begun = {"status": "InProgress", "begun_at": time.time()}
        cluster.software_updates.update({name: dict(begun) for name in groups})
        nodes = sorted(
            (node for node in cluster.nodes.values() if node.group in groups and operations.try_to_claim_node(node)),
            key=lambda node: (node.role != CONTROLLER, node.group, node.index),
        )
    deployment = request.get("DeploymentConfig") or {}
    failure = ""
    pending = list(nodes)
    try:
        for number, batch in enumerate(split_into_batches(nodes, deployment.get("RollingUpdatePolicy"))):
            if number and operations.fleet.stopping.wait(deployment.get("WaitIntervalInSeconds", 0)):
                return
            reimage_batch(operations, cluster, batch)
            pending = [node for node in pending if node not in batch]
            failed = [node for node in batch if node.status == "Failure"]
            if failed:
                failure = failure_message(failed)
                break
    finally:
        with operations.lock:
            for node in pending:
                operations.claimed_ids.discard(node.instance_id)
            for name in groups:
                cluster.software_updates[name]["status"] = "Failed" if failure or pending else "Succeeded"
            if cluster.status == UPDATING:
                cluster.status, cluster.failure_message = "InService", failure


def split_into_batches(nodes: Sequence[RehearsedNode], policy: Mapping[str, Any] | None) -> List[List[RehearsedNode]]:
    """Nodes in portions of the policy's size, at least one; all at once without a policy."""
    if policy is None:
        if nodes:
            return [list(nodes)]
        return []
    size = policy["MaximumBatchSize"]
    if size["Type"] == "INSTANCE_COUNT":
        count = size["Value"]
    else:
        count = len(nodes) * size["Value"] // 100
    step = max(1, count)
    return [list(nodes[start : start + step]) for start in range(0, len(nodes), step)]


def reimage_batch(operations: Operations, cluster: RehearsedCluster, batch: Sequence[RehearsedNode]) -> None:
    """Give claimed nodes a fresh root volume and run their scripts again; returns when all are Running or Failure."""
    memory = memory_mb_per_node(len(cluster.nodes))
    for node in batch:
        node.status, node.message = UPDATING, "its software is being updated"
        operations.slurm.mark_down(cluster, node)
    operations.changed()

    def update_node(node: RehearsedNode) -> None:
        try:
            operations.fleet.reimage(cluster, node, memory)
            operations.fleet.wait_until_created(node, is_desired=lambda: cluster.status != "Deleting")
            node.status, node.message, node.updated_at = "Running", "", time.time()
            events.record_software_update(cluster, node)
        except Exception as err:  # a node must not stay SystemUpdating, whatever happened to it
            node.status, node.message = "Failure", error_message(err)
            events.record_creation_failure(cluster, node)
        finally:
            with operations.lock:
                operations.claimed_ids.discard(node.instance_id)
            operations.changed()

    with ThreadPoolExecutor(max_workers=max(1, len(batch)), thread_name_prefix="software") as pool:
        list(pool.map(update_node, batch))
    for node in batch:
        if node.status == "Running":
            operations.run_in_background(operations.wait_for_registration_and_resume, cluster, node)
