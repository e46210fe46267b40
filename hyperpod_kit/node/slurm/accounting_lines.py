"""What slurm.conf says of accounting, and of priorities and preemption by QOS where the configuration has them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.slurm.hooks import settings, without_block

PORT = 6819
TYPE = "accounting_storage/slurmdbd"
NONE = ("", "accounting_storage/none", "(null)")

RESTARTED_FOR = (
    "accountingstoragetype",
    "accountingstoragehost",
    "accountingstorageport",
    "accountingstorageenforce",
    "preempttype",
    "prioritytype",
)
"""slurmctld takes these when it starts, and not from `scontrol reconfigure`."""


def ours(node: Node, conf: str) -> Dict[str, str]:
    """The settings that are ours whatever anybody says; empty where accounting is off.

    Raises NodeError where somebody else has set accounting up.
    """
    asked = node.config.steps.accounting
    if asked is None:
        return {}
    theirs = settings(without_block(conf))
    found = theirs.get("accountingstoragetype", "")
    host = theirs.get("accountingstoragehost", "")
    if found not in NONE:
        raise NodeError(
            f"accounting is set up already: AccountingStorageType={found}, AccountingStorageHost={host or 'none'}",
            hint="remove hyperpod_kit.steps.accounting, or these lines from slurm.conf",
        )
    lines = {
        "AccountingStorageType": TYPE,
        # An address: not every node resolves the controller's name.
        "AccountingStorageHost": node.facts.address,
        "AccountingStoragePort": str(PORT),
    }
    if "gpu" in theirs.get("grestypes", "").split(","):
        lines["AccountingStorageTRES"] = "gres/gpu"
    if asked.enforce:
        lines["AccountingStorageEnforce"] = ",".join(asked.enforce)
    if any(one.priority for one in asked.qos) and "prioritytype" not in theirs:
        lines["PriorityType"] = "priority/multifactor"
    if any(one.priority for one in asked.qos) and "priorityweightqos" not in theirs:
        lines["PriorityWeightQOS"] = "1000000"
    if asked.preempts:
        lines["PreemptType"] = "preempt/qos"
        lines["PreemptMode"] = asked.preempt_mode.upper()
    return lines


def restart_needed(before: str, after: str) -> bool:
    """Whether slurmctld must be started anew to go from one slurm.conf to another."""
    old, new = settings(before), settings(after)
    return any(old.get(key) != new.get(key) for key in RESTARTED_FOR)
