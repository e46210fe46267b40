"""The state of all mounts as a line of provisioning.log, which HyperPod ships to CloudWatch: for whoever asks from
outside and cannot log in here. `hyperpod-kit validate-mounts --via pull` reads these lines of a whole fleet.

A line when a state has changed, and one every five minutes, so that silence says something too.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_volatile
from hyperpod_kit.node.health.record import HealthRecord
from hyperpod_kit.node.slurm.guard.report import recorded_findings_or_guard_silent
from hyperpod_kit.node.steplog import append_json_line, format_timestamp
from hyperpod_kit.node.warnings import warning_lines_about_node
from hyperpod_kit.slurm.findings import SlurmFinding

STEP = "mounts"
"""What the lines are known by, among those of the steps of the node's creation."""

EVERY = 300.0
"""Seconds after which an unchanged state is said again, by the first check that comes then."""

_ROOM = ("used_bytes", "free_bytes", "used_files", "free_files", "nearly_full")
_KEPT = ("kind", "path", "state", "source", "detail", *_ROOM)


def log_mounts_report_if_due(node: Node, records: Mapping[str, HealthRecord], now: float) -> None:
    """Append the report to provisioning.log when a state has changed or EVERY seconds have passed. Raises
    OSError when it cannot be written."""
    warning_lines = warning_lines_about_node(node)
    slurm = recorded_findings_or_guard_silent(node)
    now_is = {name: [record.state, record.nearly_full] for name, record in records.items()}
    # Details of Slurm's findings hold ages, and a line for each second would be no news.
    states = json.dumps([now_is, warning_lines, [finding.code for finding in slurm]], sort_keys=True)
    published = (read_text(node.paths.last_logged_mounts_line) or "").partition("\n")
    if published[2] == states and 0 <= now - _float_or_zero(published[0]) < EVERY:
        return
    append_json_line(node.paths.provisioning_log, make_mounts_report(node, records, now, warning_lines, slurm))
    write_volatile(node.paths.last_logged_mounts_line, f"{now!r}\n{states}")


def make_mounts_report(
    node: Node,
    records: Mapping[str, HealthRecord],
    now: float,
    warning_lines: Sequence[str] = (),
    slurm: Sequence[SlurmFinding] = (),
) -> Dict[str, Any]:
    """Return the line to publish: a step like the others, and a report as `node mounts --json` prints it,
    without empty fields."""
    mounts: List[Dict[str, Any]] = []
    for name, record in records.items():
        status = record.status
        entry = {"name": name, **{key: status.get(key) for key in _KEPT if status.get(key)}}
        if not status.get("required", True):
            entry["required"] = False
        mounts.append(entry)
    healthy = all(record.is_usable_by_jobs for record in records.values())
    report: Dict[str, Any] = {
        "ts": format_timestamp(now),
        "node": node.facts.node,
        "role": node.facts.role,
        "step": STEP,
        "status": "ok" if healthy else "failed",
        "instance_id": node.facts.instance_id,
        "bundle_id": node.bundle_id,
        "checked_at": round(now, 1),
        "mounts": mounts,
    }
    if warning_lines:
        report["warnings"] = list(warning_lines)
    if slurm:
        report["slurm"] = [finding.to_dict() for finding in slurm]
    return report


def _float_or_zero(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0
