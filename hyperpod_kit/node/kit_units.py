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
from hyperpod_kit.node import remove_stale, systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.mounts import bring_up
from hyperpod_kit.node.secrets import secret_files as secrets
from hyperpod_kit.node.step import SCRIPTED, Step, StepOutcome


def timers(node: Node) -> List[str]:
    """What runs again and again."""
    of_the_role = [unit for unit in (SWEEP_TIMER, MEMORY_TIMER) if ONLY[unit] == node.facts.role]
    upkeep = [UPKEEP_TIMER] if node.config.steps.upkeep_steps_on(node.facts.role) else []
    checks_devices = node.config.steps.device_checks is not None and ONLY[DEVICES_TIMER] == node.facts.role
    guard = [GUARD_TIMER] if node.config.lifecycle_mode in SCRIPTED else []
    return [HEALTH_TIMER, *guard, *of_the_role, *upkeep, *([DEVICES_TIMER] if checks_devices else [])]


def at_boot(node: Node) -> List[str]:
    """The units that start by themselves."""
    return [
        *(carrier_unit(mount) for mount in node.mounts),
        *timers(node),
        *([SECRETS_UNIT] if secrets.secrets_of(node) else []),
    ]


def _units(node: Node) -> List[str]:
    return expected_units(node.mounts, node.facts.role, node.config.steps)


def _install(node: Node) -> StepOutcome:
    remove_stale.record_mounts(node)
    bring_up.record_running_units(node, node.mounts)
    return StepOutcome(systemd.install(node, _units(node), at_boot(node)))


def _install_pending(node: Node) -> str:
    units = _units(node)
    installing = systemd.outdated(node, units)
    # A unit that is not there yet cannot be asked about.
    enabling = [unit for unit in at_boot(node) if unit not in installing and not systemd.is_enabled(node, unit)]
    parts = [
        f"install {', '.join(installing)}" if installing else "",
        f"enable {', '.join(enabling)}" if enabling else "",
        "daemon-reload" if not installing and systemd.must_reload(node, units) else "",
    ]
    return "; ".join(part for part in parts if part)


def _start_timers(node: Node) -> StepOutcome:
    return StepOutcome(any([systemd.start(node, unit, timeout=30) for unit in timers(node)]))


def _start_pending(node: Node) -> str:
    resting = [unit for unit in timers(node) if not systemd.is_active(node, unit)]
    return f"start {', '.join(resting)}" if resting else ""


STEP = Step("units", _install, _install_pending)
TIMERS_STEP = Step("health", _start_timers, _start_pending)
