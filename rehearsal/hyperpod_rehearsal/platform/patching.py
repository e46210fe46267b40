"""AutoPatchConfig: the nodes of a group are cordoned at the date of its schedule and patched once no job is on them.

Public, from the service model: WhenIdle patches each node as it becomes idle and uncordons it; WhenAllIdle waits
for all of them; what does not become idle within IdleWaitWindowInSeconds is uncordoned as it is. DrainFirst is for
Amazon EKS alone, so that nothing is done for it here. A cordon is a drain in Slurm, which no public page says, and its
reason is assumed. A patch is what UpdateClusterSoftware is here: a fresh root volume of the one image.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Callable, List, Sequence, Set, Tuple

from hyperpod_rehearsal.platform import events, software_update
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.platform.operations import Operations

INTERVAL = 1.0
REASON = "HyperPod:AutoPatch"
WHEN_IDLE, WHEN_ALL_IDLE = "WhenIdle", "WhenAllIdle"
WINDOW = 86400.0
"""IdleWaitWindowInSeconds where the group does not say it."""


class Patching:
    """Call `patch_until_stopped` in a thread."""

    def __init__(
        self, operations: Operations, stopping: threading.Event, clock: Callable[[], float] = time.time
    ) -> None:
        self._operations = operations
        self._stopping = stopping
        self._clock = clock
        self._begun: Set[Tuple[str, str, float]] = set()

    def patch_until_stopped(self) -> None:
        while not self._stopping.wait(INTERVAL):
            try:
                self.begin_due_patches()
            except Exception:  # one bad round must not end the loop
                traceback.print_exc()

    def begin_due_patches(self) -> None:
        """Start the patch of each group whose date has come, in the background, once a date."""
        with self._operations.lock:
            due = [
                (cluster, group["InstanceGroupName"], group["AutoPatchConfig"], date)
                for cluster in self._operations.clusters.values()
                if cluster.status == "InService"
                for group in cluster.groups
                for date in [(group.get("AutoPatchConfig") or {}).get("PatchSchedule", {}).get("NextPatchDate")]
                if date is not None and date <= self._clock()
            ]
        for cluster, name, config, date in due:
            strategy = config["PatchingStrategy"]
            if strategy in (WHEN_IDLE, WHEN_ALL_IDLE) and (cluster.id, name, date) not in self._begun:
                self._begun.add((cluster.id, name, date))
                window = config.get("IdleWaitWindowInSeconds", WINDOW)
                self._operations.run_in_background(self.patch_group, cluster, name, strategy, window)

    def patch_group(self, cluster: RehearsedCluster, name: str, strategy: str, window: float) -> None:
        """Cordon a group and patch its nodes as they become idle, or all once all are; for `window` seconds at most."""
        operations, deadline = self._operations, time.monotonic() + window
        waiting = cluster.nodes_in_group(name)
        for node in waiting:
            operations.slurm.drain_node(cluster, node, REASON)
        events.record_patch(cluster, name, f"has Started ({strategy})")
        while waiting and time.monotonic() < deadline and cluster.status != "Deleting":
            waiting = [node for node in waiting if node.instance_id in cluster.nodes]
            idle = [node for node in waiting if operations.slurm.is_without_job(cluster, node)]
            if idle and (strategy == WHEN_IDLE or len(idle) == len(waiting)):
                self._patch(cluster, idle)
                waiting = [node for node in waiting if node not in idle]
            if self._stopping.wait(INTERVAL):
                return
        for node in waiting:
            operations.slurm.resume_node(cluster, node)
        state = "has Succeeded"
        if waiting:
            state = f"has ended; {len(waiting)} instances did not become idle"
        events.record_patch(cluster, name, state)

    def _patch(self, cluster: RehearsedCluster, nodes: Sequence[RehearsedNode]) -> None:
        claimed: List[RehearsedNode] = [node for node in nodes if self._operations.try_to_claim_node(node)]
        software_update.reimage_batch(self._operations, cluster, claimed)
