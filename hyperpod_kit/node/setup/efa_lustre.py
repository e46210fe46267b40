"""EFA to Lustre, before the first mount: FSx's own set-up is started, and LNet is asked whether it has an EFA.

A client that mounts before that uses TCP for good and says nothing, and so does one whose set-up failed. Sources: FSx
for Lustre User Guide, "Configuring EFA clients": its archive has the unit; a script of the configuration installs it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.states import ROLES
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import SCRIPTED, Step, StepOutcome

UNIT = "configure-efa-fsx-lustre-client.service"
DEVICES = "/sys/class/infiniband"
START_SECONDS = 120.0
ASK_SECONDS = 20.0
HINT = "install it with a script of the configuration that runs before the mounts, then replace the node"


class EfaLustre:
    """A step of nodes that have a Lustre mount over EFA, and of no others."""

    roles = ROLES
    modes: Tuple[str, ...] = SCRIPTED

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """Return the step for a node of that role, in that instance group."""
        if any(mount.efa and mount.is_carried_by(role, group) for mount in config.mounts):
            return (Step("efa-lustre", _start_set_up, _describe_pending_start, required=False),)
        return ()


STEP = EfaLustre()


def _has_efa_device(node: Node) -> bool:
    directory = node.paths.under_root(DEVICES)
    return os.path.isdir(directory) and bool(os.listdir(directory))


def _has_efa_in_lnet(node: Node) -> bool:
    shown = node.runner.run(["lnetctl", "net", "show", "--net", "efa"], timeout=ASK_SECONDS, check=False)
    return shown.returncode == 0 and "@efa" in shown.stdout


def _describe_pending_start(node: Node) -> str:
    if not _has_efa_device(node) or _has_efa_in_lnet(node):
        return ""
    return f"start {UNIT}"


def _start_set_up(node: Node) -> StepOutcome:
    if not _has_efa_device(node):
        return StepOutcome(False, "no EFA device on this node: Lustre is mounted over TCP")
    if _has_efa_in_lnet(node):
        return StepOutcome()
    try:
        node.runner.run(["systemctl", "start", UNIT], timeout=START_SECONDS)
    except RunError as err:
        raise NodeError(f"{UNIT} did not start, so Lustre is mounted over TCP: {err.message}", hint=HINT) from err
    if not _has_efa_in_lnet(node):
        raise NodeError(f"{UNIT} has run, but LNet has no EFA: Lustre is mounted over TCP", hint=HINT)
    return StepOutcome(True)
