"""All optional steps, and the step that takes back those that the configuration has no more.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Tuple

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.optional import (
    accounting,
    device_checks,
    docker,
    enroot,
    log_rotation,
    login_message,
    node_exporter,
    pam_slurm_adopt,
    podman,
    pyxis,
    ssh_between_nodes,
    sssd,
)
from hyperpod_kit.node.optional.optional_step import OptionalStep, steps_to_undo, undo_leftovers
from hyperpod_kit.node.step import SCRIPTED, Step, StepOutcome

AFTER_MOUNTS_STEPS: Tuple[OptionalStep, ...] = (
    log_rotation.STEP,
    login_message.STEP,
    node_exporter.STEP,
    ssh_between_nodes.STEP,
    docker.STEP,
    podman.STEP,
    enroot.STEP,
    pyxis.STEP,
    sssd.STEP,
    pam_slurm_adopt.STEP,
    device_checks.STEP,
)
"""Those that run in this order when all mounts are there; the two of accounting run around Slurm's own steps."""

ALL: Tuple[OptionalStep, ...] = (*AFTER_MOUNTS_STEPS, accounting.DATABASE_STEP, accounting.STEP)


def _undo_switched_off(node: Node) -> StepOutcome:
    done = undo_leftovers(node, ALL)
    return StepOutcome(bool(done), "; ".join(done))


def _describe_pending_undo(node: Node) -> str:
    names = [step.name for step in steps_to_undo(node, ALL)]
    if names:
        return f"take back {', '.join(names)}"
    return ""


# After Slurm has been told: slurmdbd rests once slurmctld asks it no more.
OFF_STEP = Step("switched-off", _undo_switched_off, _describe_pending_undo, required=False, modes=SCRIPTED)
