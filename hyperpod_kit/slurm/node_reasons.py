"""Why Slurm keeps jobs from a node: the reasons that slurmctld and the kit write, what each means, what to do, and
whether a job that is on the node may start another step there.

Pure. Reasons as in the sources of 22.05 to 26.05 (node_mgr.c, proc_req.c, job_mgr.c, slurmd's req.c).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON

LEAVING_REASON = "hyperpod-kit:leaving:"
"""How the reason of a node begins that a command is about to replace, restart or take away; the command's name follows.
"""

DUPLICATE_JOB = "duplicate-job"

RESUME = "scontrol update nodename={node} state=resume"


@dataclass(frozen=True)
class NodeReason:
    """pattern: of the whole reason, without regard to case; remedy: {node} stands for the node's name."""

    code: str
    pattern: str
    meaning: str
    remedy: str
    fault: bool = True


REASONS: Tuple[NodeReason, ...] = (
    NodeReason(
        "spool-unusable",
        r"hyperpod-kit:spool:.*",
        "slurmd cannot store a job's batch script: its disk is full or read-only",
        "on it: df -h; df -i; journalctl -k -p err; the kit undrains it once the disk can be written again",
    ),
    NodeReason(
        "slurmd-spool-full",
        r"SlurmdSpoolDir is full.*",
        "slurmd could not save its state: the disk of its spool directory is full",
        f"on it: df -h; df -i; then, unless the kit undrains it: {RESUME}",
    ),
    NodeReason(
        "drained-by-kit",
        r"hyperpod-kit:.*",
        "drained by the kit, which undrains it when the fault is over",
        "hyperpod-kit node mounts; hyperpod-kit node devices",
        fault=False,
    ),
    NodeReason(
        "drained-by-hyperpod",
        r"Action:.*",
        "HyperPod is replacing or rebooting it",
        "hyperpod-kit wait",
        fault=False,
    ),
    NodeReason(
        DUPLICATE_JOB,
        r"Duplicate jobid",
        "slurmctld gave it a job whose earlier run it still had, mostly after the two had lost each other",
        f"the guard undrains it once no job is left on it; by hand: {RESUME}",
    ),
    NodeReason(
        "low-memory",
        r"Low RealMemory.*",
        "it has less memory than slurm.conf says (RealMemory)",
        f"on it: slurmd -C; lower RealMemory in slurm.conf or replace the node, then {RESUME}",
    ),
    NodeReason(
        "low-processors",
        r"Low (?:CPUs|socket.*|TmpDisk).*",
        "it has less than slurm.conf says",
        f"on it: slurmd -C; correct its line in slurm.conf or replace the node, then {RESUME}",
    ),
    NodeReason(
        "gres-count",
        r"gres/.*(?:count|reported|lower|autodetect).*",
        "it has fewer devices than slurm.conf and gres.conf say",
        f"on it: hyperpod-kit node devices; nvidia-smi -L; slurmd -C; replace the node, or {RESUME}",
    ),
    NodeReason(
        "prolog-error",
        r"Prolog error.*",
        "its Prolog refused a job or did not end: the mount gate says why",
        f"on it: hyperpod-kit node gate; journalctl -u slurmd; then {RESUME}",
    ),
    NodeReason(
        "epilog-error",
        r"Epilog error.*",
        "its Epilog failed or did not end",
        f"on it: journalctl -u slurmd; then {RESUME}",
    ),
    NodeReason(
        "kill-failed",
        r"Kill task failed.*",
        "processes of a job did not die, mostly in a file system that hangs",
        f"on it: ps -eo pid,stat,wchan:30,cmd | grep ' D'; reboot it when they stay, then {RESUME}",
    ),
    NodeReason(
        "not-responding",
        r"Not responding.*",
        "slurmctld has not heard of its slurmd for SlurmdTimeout",
        f"on it: systemctl status slurmd munge; then {RESUME}",
    ),
    NodeReason(
        "rebooted",
        r"Node unexpectedly rebooted.*",
        "it was started anew without slurmctld's knowing",
        f"on it: journalctl -b -1 -e; then {RESUME}",
    ),
    NodeReason(
        "launch-failed",
        r"batch job complete failure.*|Job env setup error.*|launch failure.*",
        "slurmd could not start a batch script",
        f"on it: journalctl -u slurmd; then {RESUME}",
    ),
)


_STARTS_NO_STEP = re.compile(r"down|fail|not_resp|unk|inval|reboot|\*", re.IGNORECASE)

_GIVEN_BY = re.compile(r"\s*\[[^\[\]]*@[^\[\]]*\]$")
"""Who gave a reason and when, as Slurm prints it behind the reason."""

_FAULT_IN_WORDS = re.compile(
    r"\b(?:nhc|xid|ecc|gpus?|nvlink|nvswitch|neuron|efa|infiniband|nvme|dimm|hardware|hw|faulty|broken|unhealthy|sick)\b",
    re.IGNORECASE,
)
"""What people and other health checks write when they drain a node for its hardware."""


def can_start_steps(state: str, reason: str) -> bool:
    """Return whether a job that holds this node can start a step there, and should.

    Slurm itself starts steps of such a job on a drained node, for whatever reason it is drained (seen with 20.11, 22.05
    and 24.11): a drain keeps other jobs away. So a cordon for a patch or for maintenance changes nothing for the job. A
    drain for a fault does: of the kit's health checks, of Slurm, of HyperPod, or of somebody who names hardware.
    """
    if _STARTS_NO_STEP.search(state):
        return False
    return not is_draining(state) or not _tells_of_a_fault(_GIVEN_BY.sub("", reason))


def is_draining(state: str) -> bool:
    """Return whether the node is drained, or will be once the jobs on it have ended."""
    return "DRAIN" in state.upper()


def _tells_of_a_fault(reason: str) -> bool:
    if reason.startswith(LEAVING_REASON):
        return False
    return _known_reason_or_none(reason) is not None or _FAULT_IN_WORDS.search(reason) is not None


def _known_reason_or_none(reason: str) -> Optional[NodeReason]:
    return next((known for known in REASONS if re.fullmatch(known.pattern, reason, re.IGNORECASE)), None)


def finding_for_node_state_or_none(node: str, state: str, reason: str) -> Optional[SlurmFinding]:
    """Return the finding that says what keeps jobs from this node and what to do; None when its state keeps
    none away. `reason`: without its author."""
    if not HOLDS_BY_REASON.search(state):
        return None
    node_reason = _known_reason_or_none(reason)
    shown = f"{node} is {state} in Slurm ({reason or 'no reason given'})"
    if node_reason is not None:
        return SlurmFinding(
            node_reason.code, f"{shown}: {node_reason.meaning}", node_reason.remedy.format(node=node), node_reason.fault
        )
    if re.search(r"down|fail|inval", state, re.IGNORECASE):
        return SlurmFinding(
            "node-down",
            f"{shown}: it gets no jobs",
            f"on it: systemctl status slurmd munge; then {RESUME.format(node=node)}",
        )
    if re.search(r"not_resp|\*", state, re.IGNORECASE) and "drain" not in state.lower():
        # Also for some seconds after a reconfiguration; what lasts becomes DOWN after SlurmdTimeout.
        return SlurmFinding(
            "node-unheard", f"{shown}: slurmctld waits for its slurmd", "systemctl status slurmd", fault=False
        )
    return SlurmFinding(
        "drained-by-others",
        f"{shown}: somebody keeps jobs from it, and the kit leaves that alone",
        f"when it is over: {RESUME.format(node=node)}",
        fault=False,
    )
