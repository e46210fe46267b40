"""What slurm.conf says of accounting, and of priorities and preemption by QOS where the configuration has them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings, without_kit_block

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


def accounting_settings(node: Node, conf: str) -> Dict[str, str]:
    """Return the settings of slurm.conf that accounting needs whatever else is set; {} where accounting is
    off.

    Raises NodeError where somebody else has set accounting up.
    """
    accounting = node.config.steps.accounting
    if accounting is None:
        return {}
    existing = parse_slurm_conf_settings(without_kit_block(conf))
    storage_type = existing.get("accountingstoragetype", "")
    host = existing.get("accountingstoragehost", "")
    if storage_type not in NONE:
        raise NodeError(
            f"accounting is already set up: AccountingStorageType={storage_type}, "
            f"AccountingStorageHost={host or 'none'}",
            hint="remove hyperpod_kit.steps.accounting, or these lines from slurm.conf",
        )
    lines = {
        "AccountingStorageType": TYPE,
        # An address: not every node resolves the controller's name.
        "AccountingStorageHost": node.facts.address,
        "AccountingStoragePort": str(PORT),
    }
    if "gpu" in existing.get("grestypes", "").split(","):
        lines["AccountingStorageTRES"] = "gres/gpu"
    if accounting.enforce:
        lines["AccountingStorageEnforce"] = ",".join(accounting.enforce)
    if any(qos.priority for qos in accounting.qos) and "prioritytype" not in existing:
        lines["PriorityType"] = "priority/multifactor"
    if any(qos.priority for qos in accounting.qos) and "priorityweightqos" not in existing:
        lines["PriorityWeightQOS"] = "1000000"
    if accounting.preempts:
        lines["PreemptType"] = "preempt/qos"
        lines["PreemptMode"] = accounting.preempt_mode.upper()
    return lines


def needs_slurmctld_restart(before: str, after: str) -> bool:
    """Whether slurmctld must be started anew to go from one slurm.conf to another."""
    old, new = parse_slurm_conf_settings(before), parse_slurm_conf_settings(after)
    return any(old.get(key) != new.get(key) for key in RESTARTED_FOR)
