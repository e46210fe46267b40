"""munged: without it no Slurm command works on this node, and slurmctld takes the node for dead.

A unit that is enabled and does not run is started again, later and later. Whoever wants it stopped disables it.
There is nobody to drain: scontrol needs munged, and Slurm marks the node down by itself.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Optional

from hyperpod_kit import audit
from hyperpod_kit.errors import RunError
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, try_write_volatile_json
from hyperpod_kit.node.observe.health_record import seconds_before_next_repair
from hyperpod_kit.untrusted import by_descriptor

UNIT = "munge.service"


@dataclass(frozen=True)
class MungeState:
    """runs: None where nobody wants it; message: a line for a person, "" when nothing is new."""

    runs: Optional[bool] = None
    message: str = ""


def start_munged_if_due(node: Node) -> MungeState:
    """Start munged where it is enabled, does not run, and its back-off is over; return its state. Costs no
    command while it runs."""
    if not os.path.exists(node.paths.munge_key):
        return MungeState()
    recorded = read_json(node.paths.munge_start_note)
    if isinstance(recorded, dict):
        before = recorded
    else:
        before = {}
    tries = int(before.get("tries", 0))
    if systemd.process_ids_of_unit(node, UNIT):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.munge_start_note)
        return MungeState(True, "munged runs again" if tries else "")
    if not systemd.is_enabled(node, UNIT):
        return MungeState()
    if tries and 0 <= node.clock.wall() - before.get("at", 0.0) < seconds_before_next_repair(
        tries, node.config.health.interval
    ):
        return MungeState(False)
    try_write_volatile_json(node.paths.munge_start_note, {"tries": tries + 1, "at": node.clock.wall()})
    message = (
        "munged does not run: no Slurm command works on this node, and Slurm considers the node dead; start "
        f"{tries + 1}"
    )
    try:
        audit.record_root_action_in_journal(
            "started", UNIT, "it is enabled but did not run", asked_by="the health check"
        )
        node.runner.run(["systemctl", "start", "--no-block", UNIT], timeout=10)
    except RunError as err:
        message += f": {err.message}"
    return MungeState(False, message)
