"""Why Slurm keeps jobs from a node: the reasons that slurmctld and the kit write, what each means, what to do.

Pure. Reasons as in the sources of 22.05 to 26.05 (node_mgr.c, proc_req.c, job_mgr.c, slurmd's req.c).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON

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


def finding_for_node_state_or_none(node: str, state: str, reason: str) -> Optional[SlurmFinding]:
    """Return the finding that says what keeps jobs from this node and what to do; None when its state keeps
    none away. `reason`: without its author."""
    if not HOLDS_BY_REASON.search(state):
        return None
    node_reason = next(
        (candidate for candidate in REASONS if re.fullmatch(candidate.pattern, reason, re.IGNORECASE)), None
    )
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
