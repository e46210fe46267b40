"""What is not as it should be on a node although all of its mounts serve: for reports, in words with the way out.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Mapping, Optional

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts.protect import find_unprotected
from hyperpod_kit.node.observe import health_record
from hyperpod_kit.node.packets import packet_rules


def warning_lines_about_node(node: Node, access_refusals: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return a line for each thing that is not as it should be on this node, the same words while it stays the
    same. Runs no command, touches no mount.

    refused: what users cannot write, where the caller has just tried; without it, what the last
    health check recorded.
    """
    lines = [*(unprotected_mount.message for unprotected_mount in find_unprotected(node)), *packet_rules.warnings(node)]
    if access_refusals is None:
        lines += _recorded_access_refusals(node)
    else:
        lines += access_refusals.values()
    if node.config.steps.device_checks is not None:
        from hyperpod_kit.node.devices import record as devices  # off by default, and dear to import

        lines += devices.recorded_finding_lines(node)
    if node.config.steps.training_environment is not None:
        lines += _recorded_environment_failure(node)
    return lines


def _recorded_environment_failure(node: Node) -> List[str]:
    failure = read_text(node.paths.training_environment_failure)
    if failure is None:
        return []
    return [f"no usable training environment on this node: {failure.strip()}; then: hyperpod-kit node apply"]


def _recorded_access_refusals(node: Node) -> List[str]:
    records = health_record.load_health_records(node)
    return [records[mount.name].users_refused for mount in node.mounts if _has_access_refusal(records.get(mount.name))]


def _has_access_refusal(record: Optional[health_record.HealthRecord]) -> bool:
    return record is not None and bool(record.users_refused)
