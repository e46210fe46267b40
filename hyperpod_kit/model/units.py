"""Names of the systemd units that carry a mount: rendered by the admin's side, installed and started by the node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.optional_steps import OptionalSteps
from hyperpod_kit.model.states import Role

PREFIX = "hyperpod-kit-"
"""Every unit of ours begins so; whatever does not is somebody else's and is left alone."""

HEALTH_UNIT = f"{PREFIX}health.service"
HEALTH_TIMER = f"{PREFIX}health.timer"
DRAIN_UNIT = f"{PREFIX}drain.service"
SECRETS_UNIT = f"{PREFIX}secrets.service"
SWEEP_UNIT = f"{PREFIX}sweep.service"
SWEEP_TIMER = f"{PREFIX}sweep.timer"
SLURM_STATE_UNIT = f"{PREFIX}slurm-state.service"
MEMORY_UNIT = f"{PREFIX}memory.service"
MEMORY_TIMER = f"{PREFIX}memory.timer"
UPKEEP_UNIT = f"{PREFIX}upkeep.service"
UPKEEP_TIMER = f"{PREFIX}upkeep.timer"
DEVICES_UNIT = f"{PREFIX}devices.service"
DEVICES_TIMER = f"{PREFIX}devices.timer"
GUARD_UNIT = f"{PREFIX}slurm-guard.service"
GUARD_TIMER = f"{PREFIX}slurm-guard.timer"
FLUSH_UNIT = f"{PREFIX}flush@.service"

NODE_UNITS = (
    ("health.service.j2", HEALTH_UNIT),
    ("health.timer.j2", HEALTH_TIMER),
    ("repair@.service.j2", f"{PREFIX}repair@.service"),
    ("drain.service.j2", DRAIN_UNIT),
    ("secrets.service.j2", SECRETS_UNIT),
    ("sweep.service.j2", SWEEP_UNIT),
    ("sweep.timer.j2", SWEEP_TIMER),
    ("slurm-state.service.j2", SLURM_STATE_UNIT),
    ("memory.service.j2", MEMORY_UNIT),
    ("memory.timer.j2", MEMORY_TIMER),
    ("flush@.service.j2", FLUSH_UNIT),
    ("upkeep.service.j2", UPKEEP_UNIT),
    ("upkeep.timer.j2", UPKEEP_TIMER),
    ("slurm-guard.service.j2", GUARD_UNIT),
    ("slurm-guard.timer.j2", GUARD_TIMER),
    ("devices.service.j2", DEVICES_UNIT),
    ("devices.timer.j2", DEVICES_TIMER),
)
"""(template under templates/systemd/, unit name) of every unit that a node has once, whatever its mounts."""


ONLY = {
    SWEEP_UNIT: Role.CONTROLLER,
    SWEEP_TIMER: Role.CONTROLLER,
    SLURM_STATE_UNIT: Role.CONTROLLER,
    MEMORY_UNIT: Role.COMPUTE,
    MEMORY_TIMER: Role.COMPUTE,
    FLUSH_UNIT: Role.COMPUTE,
    DEVICES_UNIT: Role.COMPUTE,
    DEVICES_TIMER: Role.COMPUTE,
}
"""Units that nodes of one role alone have: some are slurmctld's neighbours, captures lie where jobs run."""


def systemd_escape_path(path: str) -> str:
    """What `systemd-escape -p PATH` prints, for an absolute path without `..`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{path}: a unit name cannot be made from a path with `..`")
    if not parts:
        return "-"
    out = []
    for index, byte in enumerate("/".join(parts).encode()):
        char = chr(byte)
        if char == "/":
            out.append("-")
        elif (byte < 128 and (char.isalnum() or char in ":_")) or (char == "." and index > 0):
            out.append(char)
        else:
            out.append(f"\\x{byte:02x}")
    return "".join(out)


def carrier_unit(mount: Mount) -> str:
    """The unit that, when started, makes the mount: its daemon where it has one, else the one-shot service."""
    return f"{PREFIX}{mount.traits.service.infix}-{mount.name}.service"


def repair_unit(name: str) -> str:
    """The one-shot service that repairs the mount of that name once."""
    return f"{PREFIX}repair@{name}.service"


def flush_unit(job: str, restart: int, uid: int) -> str:
    """The one-shot service that saves what a job of that user left in shared memory."""
    return f"{PREFIX}flush@{job}.{restart}.{uid}.service"


def expected_units(mounts: Sequence[Mount], role: str, steps: OptionalSteps) -> List[str]:
    """Every unit of ours that a node with these mounts and optional steps has; any other of that prefix is left from
    before."""
    excluded = {unit for unit, only in ONLY.items() if role != only}
    if not steps.upkeep_steps_on(role):
        excluded |= {UPKEEP_UNIT, UPKEEP_TIMER}
    if steps.device_checks is None:
        excluded |= {DEVICES_UNIT, DEVICES_TIMER}
    return [
        *(unit for mount in mounts for _, unit in mount_unit_templates_and_names(mount)),
        *(unit for _, unit in NODE_UNITS if unit not in excluded),
    ]


def mount_unit_templates_and_names(mount: Mount) -> List[Tuple[str, str]]:
    """(template under templates/systemd/, unit name) of every unit of one mount."""
    return [(mount.traits.service.template, carrier_unit(mount))]
