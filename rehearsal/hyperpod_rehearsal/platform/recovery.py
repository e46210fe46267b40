"""The loop that keeps clusters whole: machines that died or that Slurm gives up with a reason are replaced."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Callable, List, Tuple

from hyperpod_rehearsal.machines.machine import REBOOT_EXIT
from hyperpod_rehearsal.platform.back_off import NodeBackOff
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.market import lacks_capacity
from hyperpod_rehearsal.platform.operations import Operations
from hyperpod_rehearsal.platform.slurm_control import ACTION_REBOOT, ACTION_REPLACE

INTERVAL = 1.0
IDLE_STATES = ("fail", "down", "drained")
"""States in which no job is left on a node that carries an action as its reason."""


class Recovery:
    """Call `run` in a thread; it returns when `stopping` is set."""

    def __init__(
        self, operations: Operations, stopping: threading.Event, clock: Callable[[], float] = time.time
    ) -> None:
        self._operations = operations
        self._stopping = stopping
        self._clock = clock
        self._back_off = NodeBackOff()

    def recover_until_stopped(self) -> None:
        while not self._stopping.wait(INTERVAL):
            for cluster in self._in_service_or_updating_clusters():
                try:
                    self.recover_cluster_nodes(cluster)
                except Exception:  # one bad round must not end the loop that everybody relies on
                    traceback.print_exc()

    def _in_service_or_updating_clusters(self) -> List[RehearsedCluster]:
        with self._operations.lock:
            return [
                cluster for cluster in self._operations.clusters.values() if cluster.status in ("InService", "Updating")
            ]

    def recover_cluster_nodes(self, cluster: RehearsedCluster) -> None:
        """Start in the background to replace or reboot each node that ended, failed or carries an action."""
        for node in list(cluster.nodes.values()):
            code = self._operations.fleet.machines.exit_code(node.instance_id)
            if code is not None and node.status in ("Running", "Failure", "Pending"):
                self._recover_exited_node(cluster, node, code)
            elif (
                (cluster.is_continuously_provisioned or lacks_capacity(node))
                and node.status == "Failure"
                and node.role != CONTROLLER
                and node.instance_id not in self._operations.claimed_ids
            ):
                # Its script failed. HyperPod tries again for ever, and bills for it.
                self._recover_with_back_off(cluster, node, self._operations.replace_node, "its creation failed")
        for node, action in self._actions_requested_in_slurm(cluster):
            if self._operations.try_to_claim_node(node):
                work: Callable[[RehearsedCluster, RehearsedNode, str], None] = self._operations.reboot_node
                if action == ACTION_REPLACE:
                    work = self._operations.replace_node
                self._operations.run_in_background(work, cluster, node, f"Slurm's reason: {action}")

    def _recover_exited_node(self, cluster: RehearsedCluster, node: RehearsedNode, code: int) -> None:
        operations = self._operations
        if code == REBOOT_EXIT:
            self._recover_with_back_off(cluster, node, operations.reboot_node, "rebooted from inside")
        elif cluster.replaces_dead_nodes:
            self._recover_with_back_off(cluster, node, operations.replace_node, "the machine died")
        elif node.status != "Failure" and node.instance_id not in operations.claimed_ids:
            # NodeRecovery None: the fault is labelled, nobody acts, Slurm finds out by itself.
            node.status = "Failure"
            node.message = f"the machine ended at {time.strftime('%H:%M:%S')}; NodeRecovery is None"
            operations.changed()

    def _recover_with_back_off(
        self,
        cluster: RehearsedCluster,
        node: RehearsedNode,
        work: Callable[[RehearsedCluster, RehearsedNode, str], None],
        reason: str,
    ) -> None:
        """Start `work` on a node at once at its first death, after growing pauses when it dies repeatedly."""
        operations, now = self._operations, self._clock()
        node_key = f"{cluster.id}/{node.group_and_index}"
        steady = node.status == "Running" and self._back_off.is_steady(now - node.booted_at)
        due_at = self._back_off.next_try_at(node_key, steady)
        if now < due_at:
            if node.status == "Running":
                node.status = "Failure"
            note = (
                f"{reason}, time {self._back_off.consecutive_tries(node_key) + 1} in a row; next try at "
                f"{time.strftime('%H:%M:%S', time.localtime(due_at))}"
            )
            if not node.message.startswith(note):
                if node.message:
                    node.message = f"{note}; {node.message}"
                else:
                    node.message = note
                operations.changed()
                operations.slurm.mark_down(cluster, node)
            return
        if operations.try_to_claim_node(node):
            self._back_off.record_try(node_key, now, steady)
            operations.run_in_background(work, cluster, node, reason)

    def _actions_requested_in_slurm(self, cluster: RehearsedCluster) -> List[Tuple[RehearsedNode, str]]:
        """Return (node, action) for nodes whose Slurm reason is exactly an action and that no job uses any more."""
        if cluster.controller is None or not cluster.replaces_dead_nodes:
            return []
        reasons = self._operations.slurm.nodes_with_reasons(cluster)
        requests = []
        for node in list(cluster.nodes.values()):
            slurm_node = reasons.get(node.host)
            if (
                slurm_node
                and slurm_node.reason in (ACTION_REPLACE, ACTION_REBOOT)
                and slurm_node.state in IDLE_STATES
                and node.role != CONTROLLER
                and node.status == "Running"
            ):
                requests.append((node, slurm_node.reason))
        return requests
