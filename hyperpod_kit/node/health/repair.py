"""Repair one mount, in a process of its own. A living mount is never torn away.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Optional

from hyperpod_kit import audit
from hyperpod_kit.errors import HyperpodKitError, RunError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import REPAIRS, MountState, RepairAction
from hyperpod_kit.model.units import HEALTH_UNIT, carrier_unit
from hyperpod_kit.node.health.repair_policy import repair_action_for_state
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import try_write_volatile_json
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.node.mounts.ensure import await_mounted_or_raise, detach_dead_mount
from hyperpod_kit.node.observe import health_record
from hyperpod_kit.node.observe.check import check_mount, observe_mounts
from hyperpod_kit.node.observe.health_record import HealthRecord

REVIVED_WITHIN = 15.0
"""Seconds in which efs-utils' watchdog (it looks every 1 to 10 s) gets a dead TLS proxy running again by itself: then
nobody's open files are lost, as they would be when the mount is torn away."""


@dataclass(frozen=True)
class RepairOutcome:
    """How a repair ended: whether the mount serves, and what happened, in words."""

    ok: bool
    summary: str


def repair_if_needed_and_save_outcome(node: Node, mount: Mount) -> Optional[RepairOutcome]:
    """Check the mount again, repair it if that is needed, save how it ended, and start a health check; None
    when another repair of this mount is at it."""
    with hold_lock(node, f"{mount.name}.repair", seconds=0) as locked:
        if not locked:
            return None
        mount_check = observe_mounts(node, [mount])[0]
        failures = health_record.load_health_records(node).get(mount.name, HealthRecord({})).failures
        action = repair_action_for_state(mount, mount_check.status, failures)
        if mount_check.status.healthy:
            result = RepairOutcome(True, "nothing to repair: the mount works")
        elif action not in REPAIRS:
            result = RepairOutcome(
                False, f"{mount_check.status.state} cannot be repaired on this node: {mount_check.status.detail}"
            )
        elif (
            mount_check.status.state == MountState.STALE
            and mount_check.observation.identity is not None
            and mount_check.observation.identity.endpoint_is_dead
            and _wait_for_recovery_by_itself(node, mount)
        ):
            result = RepairOutcome(True, "its watchdog brought the proxy back")
        else:
            result = carry_out_repair(node, mount, action)
        try_write_volatile_json(
            node.paths.repair_result(mount.name), {"at": node.clock.wall(), "ok": result.ok, "words": result.summary}
        )
    # The mark, the metrics and Slurm learn of it now, not at the next check.
    node.runner.run(["systemctl", "start", "--no-block", HEALTH_UNIT], timeout=10, check=False)
    return result


def _wait_for_recovery_by_itself(node: Node, mount: Mount) -> bool:
    def check_once() -> Optional[bool]:
        if check_mount(node, mount).healthy:
            return True
        return None

    return bool(wait_for(check_once, seconds=REVIVED_WITHIN, clock=node.clock, first=0.5, longest=2.0))


def _kill_daemon(node: Node, mount: Mount) -> None:
    node.runner.run(["systemctl", "kill", "--signal=KILL", carrier_unit(mount)], timeout=30)
    audit.record_root_action_in_journal(
        "killed", f"the daemon of {mount.path}", "it hung at two checks in a row", asked_by=_audit_requester(mount)
    )


BEFORE_START: Mapping[RepairAction, Callable[[Node, Mount], None]] = {
    RepairAction.RESTART: lambda node, mount: None,
    RepairAction.KILL: _kill_daemon,
}
"""What each of REPAIRS does before what is dead is detached and the unit is started."""


def _audit_requester(mount: Mount) -> str:
    return f"repair of mount {mount.name}"


def carry_out_repair(node: Node, mount: Mount, action: RepairAction) -> RepairOutcome:
    """Carry out one of REPAIRS: detach what is dead, start the unit and wait until the mount serves. Only what
    is dead is detached; a unit that serves again by itself is left alone."""
    unit = carrier_unit(mount)
    try:
        BEFORE_START[action](node, mount)
        detach_dead_mount(node, mount)
        # The daemon's own supervision may have been faster than this check.
        if check_mount(node, mount).healthy:
            return RepairOutcome(True, f"{action}: {unit} was back already")
        # A unit that is just starting must not be thrown back; one that claims to run must be.
        if systemd.is_active(node, unit):
            verb = "restart"
        else:
            verb = "start"
        audit.record_root_action_in_journal(
            f"{verb}ed", unit, f"{mount.path} does not work", asked_by=_audit_requester(mount)
        )
        node.runner.run(["systemctl", verb, unit], timeout=260)
        await_mounted_or_raise(node, mount, seconds=20)
        return RepairOutcome(True, f"{action}: {unit} serves again")
    except RunError as err:
        return RepairOutcome(False, f"{action} failed: {systemd.last_log_line(node, unit) or err.message}")
    except HyperpodKitError as err:
        return RepairOutcome(False, f"{action} failed: {err.message}")
