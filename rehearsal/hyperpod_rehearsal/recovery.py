"""The loop that keeps clusters whole: machines that died or that Slurm gives up with a reason are replaced."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Callable, List, Tuple

from hyperpod_rehearsal.back_off import PlaceBackOff
from hyperpod_rehearsal.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.machine import REBOOT_EXIT
from hyperpod_rehearsal.operations import Operations
from hyperpod_rehearsal.slurm_control import ACTION_REBOOT, ACTION_REPLACE

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
        self._back_off = PlaceBackOff()

    def run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            for cluster in self._watched():
                try:
                    self.look(cluster)
                except Exception:  # one bad round must not end the loop that everybody relies on
                    traceback.print_exc()

    def _watched(self) -> List[RehearsedCluster]:
        with self._operations.lock:
            return [
                cluster for cluster in self._operations.clusters.values() if cluster.status in ("InService", "Updating")
            ]

    def look(self, cluster: RehearsedCluster) -> None:
        """One round over a cluster. Starts what is needed in the background."""
        for node in list(cluster.nodes.values()):
            code = self._operations.fleet.machines.exit_code(node.instance_id)
            if code is not None and node.status in ("Running", "Failure", "Pending"):
                self._ended(cluster, node, code)
            elif (
                cluster.continuous
                and node.status == "Failure"
                and node.role != CONTROLLER
                and node.instance_id not in self._operations.in_hand
            ):
                # Its script failed. HyperPod tries again for ever, and bills for it.
                self._bring_back(cluster, node, self._operations.replace, "its creation failed")
        for node, action in self._asked_for(cluster):
            if self._operations.take(node):
                work = self._operations.replace if action == ACTION_REPLACE else self._operations.reboot
                self._operations.spawn(work, cluster, node, f"Slurm's reason: {action}")

    def _ended(self, cluster: RehearsedCluster, node: RehearsedNode, code: int) -> None:
        operations = self._operations
        if code == REBOOT_EXIT:
            self._bring_back(cluster, node, operations.reboot, "rebooted from inside")
        elif cluster.recovers:
            self._bring_back(cluster, node, operations.replace, "the machine died")
        elif node.status != "Failure" and node.instance_id not in operations.in_hand:
            # NodeRecovery None: the fault is labelled, nobody acts, Slurm finds out by itself.
            node.status = "Failure"
            node.message = f"the machine ended at {time.strftime('%H:%M:%S')}; NodeRecovery is None"
            operations.changed()

    def _bring_back(
        self,
        cluster: RehearsedCluster,
        node: RehearsedNode,
        work: Callable[[RehearsedCluster, RehearsedNode, str], None],
        why: str,
    ) -> None:
        """Act at once on the first death of a place, later and later when what comes up there dies again and again."""
        operations, now = self._operations, self._clock()
        place = f"{cluster.id}/{node.place}"
        steady = node.status == "Running" and self._back_off.is_steady(now - node.booted_at)
        due_at = self._back_off.due_at(place, steady)
        if now < due_at:
            if node.status == "Running":
                node.status = "Failure"
            note = (
                f"{why}, time {self._back_off.count(place) + 1} in a row; next try at "
                f"{time.strftime('%H:%M:%S', time.localtime(due_at))}"
            )
            if not node.message.startswith(note):
                node.message = f"{note}; {node.message}" if node.message else note
                operations.changed()
                operations.slurm.lost(cluster, node)
            return
        if operations.take(node):
            self._back_off.acted(place, now, steady)
            operations.spawn(work, cluster, node, why)

    def _asked_for(self, cluster: RehearsedCluster) -> List[Tuple[RehearsedNode, str]]:
        """Nodes whose reason is exactly an action and that no job uses any more."""
        if cluster.controller is None or not cluster.recovers:
            return []
        reasons = self._operations.slurm.reasons(cluster)
        found = []
        for node in list(cluster.nodes.values()):
            said = reasons.get(node.host)
            if (
                said
                and said.reason in (ACTION_REPLACE, ACTION_REBOOT)
                and said.state in IDLE_STATES
                and node.role != CONTROLLER
                and node.status == "Running"
            ):
                found.append((node, said.reason))
        return found
