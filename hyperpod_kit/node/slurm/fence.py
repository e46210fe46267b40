"""Before the shared state of slurmctld is put aside for a newer copy: no other machine's slurmctld works on it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import List

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.slurm import lease
from hyperpod_kit.node.slurm.lease_keeper import LeaseKeeper
from hyperpod_kit.node.slurm.state import StateLocation, make_state_directories

CLAIM_WITHIN = lease.TAKEOVER + 20.0
"""Seconds in which another machine that has gone shows it."""


def claim_lease_or_require_others_down(node: Node, where: StateLocation) -> None:
    """Claim the lease on the shared state, or, with several controllers, require that all others are down.
    Raises NodeError where another slurmctld may work on it. The local one has been stopped."""
    if node.config.controllers > 1:
        _require_other_controllers_down(node)
        return
    make_state_directories(node, where)
    messages: List[str] = []
    keeper = LeaseKeeper(node, where, messages.append)
    # A lease that this machine has already is left to the unit that renews it.
    if not keeper.owns() and not keeper.claim(within=CLAIM_WITHIN):
        reason = "no lease on it"
        if messages:
            reason = messages[-1]
        raise NodeError(
            f"the shared state is not replaced by this machine's newer one: {reason}",
            hint="end slurmctld and hyperpod-kit-slurm-state.service on the other machine, then again",
        )


def _require_other_controllers_down(node: Node) -> None:
    try:
        pinged = node.runner.run([node.paths.scontrol, "ping"], timeout=60, check=False).stdout
    except RunError as err:
        raise NodeError(f"whether the other controllers run is not known: {err.message}", hint="scontrol ping") from err
    running = re.findall(r"(?m)^Slurmctld\(\w+\) at (\S+) is UP", pinged)
    if running:
        raise NodeError(
            "the shared state is not replaced by this machine's newer one while slurmctld runs on "
            f"{', '.join(running)}",
            hint="systemctl stop slurmctld there, hyperpod-kit node apply here, then there",
        )
