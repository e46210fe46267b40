"""What the guard has seen, for everything that reports about this node. Runs no command.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Any, Dict, List

from hyperpod_kit.model.states import LifecycleMode
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text
from hyperpod_kit.slurm import findings
from hyperpod_kit.slurm.findings import SlurmFinding


def recorded_findings_or_guard_silent(node: Node) -> List[SlurmFinding]:
    """Return the guard's recorded findings, or the finding that it is silent, where it should have run and has
    not. [] in mode ami_only, and before the guard must have run."""
    if node.config.lifecycle_mode == LifecycleMode.AMI_ONLY:
        return []
    record = findings.read_guard_record(node.paths.slurm_guard_record)
    if record is None and not _should_guard_have_run_by_now(node):
        return []
    return findings.findings_or_guard_silent(record, node.clock.wall())


def _should_guard_have_run_by_now(node: Node) -> bool:
    """Return whether this node is set up, and has been up for so long that its guard must have run."""
    status: Dict[str, Any] = read_json(node.paths.apply_status) or {}
    finished = status.get("finished_at")
    if not isinstance(finished, (int, float)):
        return False
    up = (read_text(node.paths.uptime) or "0").split()[0]
    made_for = node.clock.wall() - finished
    return min(float(up), made_for) > findings.SILENT_AFTER
