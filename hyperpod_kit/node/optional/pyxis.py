"""Pyxis, by which `srun --container-image` starts tasks in enroot's containers: the plugin on every node, and on the
controller its line in plugstack.conf (slurm/pyxis_line.py), which slurm-hooks writes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.slurm import pyxis_line

PYXIS = Software(pyxis_line.PLUGINS, ("pyxis",), mode=os.R_OK)


def _install_pyxis(node: Node) -> StepOutcome:
    summary = software.ensure_installed(node, PYXIS)
    return StepOutcome(bool(summary), summary)


def _describe_pending_changes(node: Node) -> str:
    return software.describe_pending_install(node, PYXIS)


def _undo_without_action(node: Node) -> str:
    return "Slurm no longer loads it; the package is kept"


# Required: with its line in plugstack.conf, no slurmd starts without it.
STEP = OptionalStep("pyxis", _install_pyxis, _describe_pending_changes, _undo_without_action, required=True)
