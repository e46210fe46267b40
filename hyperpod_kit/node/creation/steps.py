"""The steps of a node's creation, in order: that is what happens. Which of them a node needs is decided in
commands/plan.py, running them is the work of commands/apply.py.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Tuple

from hyperpod_kit.node.clients import install as clients
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import SCRIPTED, Planned, Step, StepOutcome
from hyperpod_kit.node.mounts import bring_up, homes, remove_stale
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
    training_environment,
)
from hyperpod_kit.node.optional.optional_step import OptionalStep, steps_to_undo, undo_leftovers
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.setup import (
    containers,
    efa_lustre,
    fuse_conf,
    groups,
    kit_units,
    logind,
    scripts,
    shares,
    users,
    wait_for_dns,
)
from hyperpod_kit.node.setup import secret_files as secrets
from hyperpod_kit.node.slurm import controller, plugin, worker

# All optional steps, and the step that takes back those that the configuration has no more.

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
    training_environment.STEP,
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


# --- All steps -------------------------------------------------------------------------------------------------------

STEPS: Tuple[Planned, ...] = (
    wait_for_dns.STEP,
    users.STEP,
    groups.STEP,
    secrets.STEP,
    clients.STEP,
    fuse_conf.STEP,
    scripts.BEFORE_MOUNTS_STEPS,
    # Behind the scripts, one of which installs it, and before anything mounts Lustre.
    efa_lustre.STEP,
    # Old mounts go first: a renamed mount uses the same path.
    remove_stale.STEP,
    kit_units.STEP,
    packet_rules.STEP,
    bring_up.STEP,
    homes.STEP,
    shares.STEP,
    kit_units.TIMERS_STEP,
    # Those that hyperpod_kit.steps asks for, here and below.
    *AFTER_MOUNTS_STEPS,
    scripts.AFTER_MOUNTS_STEPS,
    # Always: enroot may be installed later, and does nothing with it until then.
    containers.STEP,
    logind.STEP,
    plugin.STEP,
    # slurmdbd before slurmctld is pointed at it; what it is to know before a job can come.
    accounting.DATABASE_STEP,
    controller.HOOKS_STEP,
    accounting.STEP,
    controller.STEP,
    worker.STEP,
    # Those that it asks for no more.
    OFF_STEP,
    scripts.AFTER_SLURM_STEPS,
)
