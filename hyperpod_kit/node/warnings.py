"""What is not as it should be on a node although all of its mounts serve: for reports, in words with the way out.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List

from hyperpod_kit.node import packet_rules
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.mounts.protect import unprotected


def warnings(node: Node) -> List[str]:
    """One line each, the same words while it stays the same. Runs no command, touches no mount."""
    lines = [*(found.words for found in unprotected(node)), *packet_rules.warnings(node)]
    if node.config.steps.device_checks is not None:
        from hyperpod_kit.node.devices import record as devices  # off by default, and dear to import

        lines += devices.warnings(node)
    return lines
