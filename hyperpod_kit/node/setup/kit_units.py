"""The units of this node: installed and enabled, and the timers among them started.

They make the mounts at a reboot, when no lifecycle script runs.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List

from hyperpod_kit.model.units import (
    DEVICES_TIMER,
    GUARD_TIMER,
    HEALTH_TIMER,
    MEMORY_TIMER,
    ONLY,
    SECRETS_UNIT,
    SWEEP_TIMER,
    UPKEEP_TIMER,
    carrier_unit,
    expected_units,
)
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import SCRIPTED, Step, StepOutcome
from hyperpod_kit.node.mounts import bring_up, remove_stale
from hyperpod_kit.node.setup import secret_files as secrets


def timer_unit_names(node: Node) -> List[str]:
    """Return the timers that this node runs, by its role and its configuration."""
    of_the_role = [unit for unit in (SWEEP_TIMER, MEMORY_TIMER) if ONLY[unit] == node.facts.role]
    upkeep = []
    if node.config.steps.upkeep_steps_on(node.facts.role):
        upkeep = [UPKEEP_TIMER]
    checks_devices = node.config.steps.device_checks is not None and ONLY[DEVICES_TIMER] == node.facts.role
    guard = []
    if node.config.lifecycle_mode in SCRIPTED:
        guard = [GUARD_TIMER]
    timer_units = [HEALTH_TIMER, *guard, *of_the_role, *upkeep]
    if checks_devices:
        timer_units.append(DEVICES_TIMER)
    return timer_units


def units_enabled_at_boot(node: Node) -> List[str]:
    """The units that start by themselves."""
    units = [*(carrier_unit(mount) for mount in node.mounts), *timer_unit_names(node)]
    if secrets.secrets_for_node_role(node):
        units.append(SECRETS_UNIT)
    return units


def _expected_unit_names(node: Node) -> List[str]:
    return expected_units(node.mounts, node.facts.role, node.config.steps)


def _record_mounts_and_install_units(node: Node) -> StepOutcome:
    remove_stale.record_mounts(node)
    bring_up.record_unit_digests_of_running_mounts(node, node.mounts)
    return StepOutcome(
        systemd.install_and_enable_bundled_units(node, _expected_unit_names(node), units_enabled_at_boot(node))
    )


def _describe_pending_unit_changes(node: Node) -> str:
    units = _expected_unit_names(node)
    installing = systemd.units_differing_from_bundle(node, units)
    # A unit that is not there yet cannot be asked about.
    enabling = [
        unit for unit in units_enabled_at_boot(node) if unit not in installing and not systemd.is_enabled(node, unit)
    ]
    parts = []
    if installing:
        parts.append(f"install {', '.join(installing)}")
    if enabling:
        parts.append(f"enable {', '.join(enabling)}")
    if not installing and systemd.needs_daemon_reload(node, units):
        parts.append("daemon-reload")
    return "; ".join(part for part in parts if part)


def _start_timers(node: Node) -> StepOutcome:
    return StepOutcome(any([systemd.start(node, unit, timeout=30) for unit in timer_unit_names(node)]))


def _describe_pending_timer_starts(node: Node) -> str:
    resting = [unit for unit in timer_unit_names(node) if not systemd.is_active(node, unit)]
    if resting:
        return f"start {', '.join(resting)}"
    return ""


STEP = Step("units", _record_mounts_and_install_units, _describe_pending_unit_changes)
TIMERS_STEP = Step("health", _start_timers, _describe_pending_timer_starts)
