"""GPUs and EFA devices are looked at again and again, by a timer of their own (node/devices): what is found at creation
is a line of the log, and fails no node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices.cycle import METRICS
from hyperpod_kit.node.devices.look import look
from hyperpod_kit.node.devices.record import recorded
from hyperpod_kit.node.devices.tell_slurm import withdraw
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.step import StepOutcome, nothing
from hyperpod_kit.untrusted import by_descriptor


def _run(node: Node) -> StepOutcome:
    asked = node.config.steps.device_checks or DeviceChecks()
    found = recorded(look(node, asked), None, node.clock.wall())
    words = [found.summary, *(f"{finding.name}: {finding.detail}" for finding in found.findings)]
    return StepOutcome(detail="; ".join(words))


def _undo(node: Node) -> str:
    said = withdraw(node)
    directory = node.config.health.textfile_directory
    for path in (node.paths.devices, node.paths.real(f"{directory}/{METRICS}") if directory else ""):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    return said or "nobody looks at GPUs and EFA devices any more"


STEP = OptionalStep("device_checks", _run, nothing, _undo, roles=(Role.COMPUTE,))
