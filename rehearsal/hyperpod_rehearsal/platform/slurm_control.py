"""How the platform talks to a cluster's Slurm: through its controller, as root, with a deadline on every call."""

from __future__ import annotations

import calendar
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_rehearsal.machines.machine import Machines
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode

SCONTROL = "/opt/slurm/bin/scontrol"
SINFO = "/opt/slurm/bin/sinfo"
SQUEUE = "/opt/slurm/bin/squeue"
DEAD_REASON = "hyperpod:instance-lost"
ACTION_REPLACE, ACTION_REBOOT = "Action:Replace", "Action:Reboot"


@dataclass(frozen=True)
class SlurmNode:
    """What Slurm says of a node. `state`: sinfo's long form without marks; `registered_at`: Unix seconds, 0 unknown."""

    state: str
    reason: str
    registered_at: float


class SlurmControl:
    """Every method is silent (None, False, {}) while no controller answers."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def _run_on_controller(self, cluster: RehearsedCluster, *argv: str, timeout: float = 15.0) -> Optional[str]:
        """Run a command on the first controller that can; returns its output, None when none can.

        Slurm's commands go from there to the one in control.
        """
        for controller in cluster.controllers:
            with suppress(HyperpodKitError):
                return self._machines.execute(controller.instance_id, argv, timeout=timeout).stdout
        return None

    def mark_down(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Set a node's Slurm state to down at once: its jobs are requeued now, not after SlurmdTimeout."""
        if node.role in ("", CONTROLLER):
            return False
        return (
            self._run_on_controller(
                cluster, SCONTROL, "update", f"nodename={node.host}", "state=down", f"reason={DEAD_REASON}"
            )
            is not None
        )

    def mark_failing(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Mark a node as HyperPod's agents do: its jobs go on, or end by themselves, and it gets no others."""
        return (
            self._run_on_controller(
                cluster, SCONTROL, "update", f"nodename={node.host}", "state=fail", f"reason={ACTION_REPLACE}"
            )
            is not None
        )

    def may_be_used_by_running_job(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Return whether a running job has the node; True also while Slurm is not responding."""
        return self._run_on_controller(cluster, SQUEUE, "-h", "-w", node.host, "-t", "RUNNING", "-o", "%A") != ""

    def reserve_nodes(self, cluster: RehearsedCluster, nodes: Sequence[RehearsedNode], name: str) -> bool:
        """Keep jobs off nodes by a maintenance reservation, whoever runs there now."""
        hosts = ",".join(node.host for node in nodes)
        return (
            self._run_on_controller(
                cluster,
                *(SCONTROL, "create", f"reservation={name}", "starttime=now", "duration=infinite", "users=root"),
                *("flags=maint,ignore_jobs", f"nodes={hosts}"),
            )
            is not None
        )

    def end_reservation(self, cluster: RehearsedCluster, name: str) -> bool:
        """Let jobs in again."""
        return self._run_on_controller(cluster, SCONTROL, "delete", f"reservation={name}") is not None

    def drain_node(self, cluster: RehearsedCluster, node: RehearsedNode, reason: str) -> bool:
        """Let a node's jobs go on, and give it no others."""
        if node.role in ("", CONTROLLER):
            return False
        return (
            self._run_on_controller(
                cluster, SCONTROL, "update", f"nodename={node.host}", "state=drain", f"reason={reason}"
            )
            is not None
        )

    def is_without_job(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Return whether no job is on a node, also none that ends; False while Slurm is not responding."""
        if node.role in ("", CONTROLLER):
            return True
        states = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED"
        return self._run_on_controller(cluster, SQUEUE, "-h", "-w", node.host, "-t", states, "-o", "%A") == ""

    def resume_node(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Let Slurm use a node again."""
        return self._run_on_controller(cluster, SCONTROL, "update", f"nodename={node.host}", "state=resume") is not None

    def nodes_with_reasons(self, cluster: RehearsedCluster) -> Dict[str, SlurmNode]:
        """Return host name -> state and reason of the nodes that carry a reason."""
        text = self._run_on_controller(cluster, SINFO, "-h", "-N", "-o", "%N|%T|%E") or ""
        by_host: Dict[str, SlurmNode] = {}
        for line in text.splitlines():
            parts = line.split("|", 2)
            if len(parts) == 3 and parts[2] != "none":
                by_host[parts[0].strip()] = SlurmNode(parts[1].rstrip("*~#!%$@^-"), parts[2], 0.0)
        return by_host

    def read_slurm_node(self, cluster: RehearsedCluster, node: RehearsedNode) -> Optional[SlurmNode]:
        """Return Slurm's state of one node, None while no controller is responding."""
        text = self._run_on_controller(cluster, SCONTROL, "-o", "show", "node", node.host)
        if text is None:
            return None
        return parse_scontrol_node_line(text)

    def has_slurmd_registered_since_boot(self, cluster: RehearsedCluster, node: RehearsedNode) -> bool:
        """Return whether the slurmd of the present machine, not that of an earlier one, has registered."""
        slurm_node = self.read_slurm_node(cluster, node)
        return slurm_node is not None and slurm_node.registered_at >= int(node.booted_at)

    def restart_slurmctld_and_reconfigure(self, cluster: RehearsedCluster) -> bool:
        """Restart slurmctld and reconfigure Slurm, so that changed node lines take effect.

        Adding nodes needs the restart before 23.11. False at once where no slurmctld runs: a bundle may start no
        Slurm.
        """
        if self._run_on_controller(cluster, "systemctl", "is-active", "--quiet", "slurmctld") is None:
            return False
        for controller in cluster.controllers:  # those that stand by too: they read their files when they start
            with suppress(HyperpodKitError):
                self._machines.execute(controller.instance_id, ("systemctl", "try-restart", "slurmctld"), timeout=60)
        if (
            poll_until(
                lambda: self._run_on_controller(cluster, SCONTROL, "ping"),
                lambda output: output is not None,
                fixed_pause(0.2),
                seconds=30,
            )
            is None
        ):
            return False
        return self._run_on_controller(cluster, SCONTROL, "reconfigure", timeout=30) is not None


def parse_scontrol_node_line(text: str) -> SlurmNode:
    """One line of `scontrol -o show node`, times in UTC."""

    def field(name: str) -> str:
        match = re.search(rf"(?:^|\s){name}=(\S+)", text)
        if match:
            return match.group(1)
        return ""

    started = 0.0
    stamp = field("SlurmdStartTime")
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", stamp):
        started = float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")))
    reason = re.search(r"\sReason=(.*?)(?:\s\[[^]]*\])?\s*$", text)
    return SlurmNode(field("State"), reason.group(1) if reason else "", started)
