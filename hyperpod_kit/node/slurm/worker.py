"""A node that runs slurmd: it fetches its configuration from the controller (configless).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import time
from typing import Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.states import LifecycleMode, Role
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.slurm.control import node_fields

REGISTERED_WITHIN = 300.0
"""Seconds: the controller is created at the same time as its workers and may be minutes behind."""

DROP_IN = """\
# Written by hyperpod-kit.
[Unit]
StartLimitIntervalSec=0

[Service]
Environment=SLURMD_OPTIONS=--conf-server={controllers}
# slurmd gives up when the controller is not there yet: at creation, and when the whole cluster boots.
Restart=on-failure
RestartSec=2
"""


RESTART = "slurmd-restart"
NEVER_STARTED = ("", "None", "Unknown", "N/A")
"""SlurmdStartTime of a node that has not registered since slurmctld was started."""

UNITS = ("munge.service", "slurmd.service")


def slurmd_drop_in_path_and_text(node: Node) -> Tuple[str, str]:
    """(path, text) of the lines that point slurmd at the controller. Raises NodeError when nobody says where it is."""
    address = node.facts.controller_address
    if not address:
        raise NodeError(
            "the resource config names no Slurm controller",
            hint="check the name of the controller group in provisioning_parameters.json",
        )
    several = ""
    if node.config.controllers > 1:
        several = ",".join(node.facts.controllers)
    return node.paths.unit("slurmd.service.d/hyperpod-kit.conf"), DROP_IN.format(controllers=several or address)


def point_slurmd_at_controller(node: Node) -> None:
    """Write the lines that point slurmd at the controller, and record that slurmd is to be restarted. Raises
    NodeError."""
    path, text = slurmd_drop_in_path_and_text(node)
    if read_text(path) != text:
        deferred_actions.record_action(node, RESTART)
        write_if_different(path, text)
    if deferred_actions.is_recorded(node, RESTART):
        systemd.daemon_reload(node)


def describe_pending_changes(node: Node) -> str:
    """Return what `start_worker_and_await_registration` would do, in words. Raises NodeError."""
    path, text = slurmd_drop_in_path_and_text(node)
    resting = [unit for unit in UNITS if not (systemd.is_enabled(node, unit) and systemd.is_active(node, unit))]
    parts = []
    if read_text(path) != text:
        parts.append(f"write {path}")
    if resting:
        parts.append(f"enable and start {', '.join(resting)}")
    if deferred_actions.is_recorded(node, RESTART) and "slurmd.service" not in resting:
        parts.append("restart slurmd.service")
    return "; ".join(part for part in parts if part)


def parse_slurmd_start_time(output: str) -> str:
    """When the slurmd that `scontrol show node -o` describes was started, in Slurm's words; "" where it does not say.

    By that node's own clock, which may be set at any time: to be compared with what was shown before, no more.
    """
    return node_fields((output.splitlines() or [""])[0]).get("SlurmdStartTime", "")


def has_registered(output: str, start_time_before: Optional[str], since: float = 0.0) -> bool:
    """Return whether `scontrol show node -o` describes a slurmd that has registered with the controller.
    `start_time_before`: `parse_slurmd_start_time` as it was shown before this slurmd was started, None
    where any will do; `since`: when it was started, Unix seconds, which decides where nothing was shown
    before.

    A node that the platform still holds DOWN has registered all the same; `*` marks one that does not
    respond. The controller goes on describing the machine that this one replaces until then: hence the
    start time.
    """
    fields = node_fields((output.splitlines() or [""])[0])
    if "State" not in fields or any(flag in fields["State"] for flag in ("*", "UNKNOWN", "NOT_RESPONDING")):
        return False
    if "SlurmdStartTime" not in fields:
        return True
    started = fields["SlurmdStartTime"]
    if started in NEVER_STARTED or start_time_before is None or start_time_before:
        return started not in NEVER_STARTED and started != start_time_before
    try:
        return time.mktime(time.strptime(started, "%Y-%m-%dT%H:%M:%S")) >= since - 2
    except ValueError:
        return False


def _show_node_output_or_empty(node: Node) -> str:
    """What the controller says of this node; "" where it does not answer."""
    argv = [node.paths.scontrol, "--oneliner", "show", "node", node.facts.node]
    try:
        return node.runner.run(argv, timeout=20, check=False).stdout
    except RunError:
        return ""


def start_worker_and_await_registration(node: Node) -> bool:
    """Start munge and slurmd, now and at boot, and wait until the controller knows this node. Raises NodeError."""
    point_slurmd_at_controller(node)
    restart = deferred_actions.is_recorded(node, RESTART) and systemd.is_active(node, "slurmd.service")
    changed = systemd.enable(node, *UNITS) or deferred_actions.is_recorded(node, RESTART)
    changed = systemd.start(node, "munge.service", timeout=90) or changed
    runs_already = not restart and systemd.is_active(node, "slurmd.service")
    if runs_already:
        before = None
    else:
        before = parse_slurmd_start_time(_show_node_output_or_empty(node))
    wall, start_time = node.clock.wall(), node.clock.monotonic()
    with contextlib.suppress(RunError):  # its unit tries again by itself until the controller answers
        if restart:
            node.runner.run(["systemctl", "restart", "slurmd.service"], timeout=90)
        else:
            changed = systemd.start(node, "slurmd.service", timeout=90) or changed
    deferred_actions.delete_action_record(node, RESTART)

    def check_registration() -> Optional[bool]:
        # The earlier of both, where the clock was set while slurmd was started.
        since = min(wall, node.clock.wall() - (node.clock.monotonic() - start_time))
        is_registered = has_registered(_show_node_output_or_empty(node), before, since)
        if is_registered and systemd.is_active(node, "slurmd.service"):
            return True
        return None

    if wait_for(check_registration, seconds=REGISTERED_WITHIN, clock=node.clock, first=0.2, longest=5.0) is None:
        raise NodeError(
            f"{node.facts.node} has not registered with the controller {node.facts.controller_address} "
            f"after {REGISTERED_WITHIN:g} s: {systemd.last_log_line(node, 'slurmd.service')}",
            hint="journalctl -u slurmd; check that the node is in slurm.conf",
        )
    return changed


def _apply_worker_start(node: Node) -> StepOutcome:
    return StepOutcome(start_worker_and_await_registration(node), f"registered with {node.facts.controller_address}")


# In on_init_complete mode HyperPod has started Slurm: see controller.py.
STEP = Step(
    "slurm-worker",
    _apply_worker_start,
    describe_pending_changes,
    roles=(Role.COMPUTE, Role.LOGIN),
    modes=(LifecycleMode.ON_CREATE,),
    after_success=True,
)
