"""GPUs and EFA devices are looked at again and again, by a timer of their own (node/devices): what is found at creation
is a line of the log, and fails no node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.devices.collect import observe_devices
from hyperpod_kit.node.devices.cycle import METRICS
from hyperpod_kit.node.devices.record import make_record
from hyperpod_kit.node.devices.slurm_state import withdraw_device_drain
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import StepOutcome, no_changes
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.untrusted import by_descriptor


def _check_devices_for_log(node: Node) -> StepOutcome:
    checks = node.config.steps.device_checks or DeviceChecks()
    record = make_record(observe_devices(node, checks), None, node.clock.wall())
    parts = [record.device_counts_text, *(f"{finding.name}: {finding.detail}" for finding in record.findings)]
    return StepOutcome(detail="; ".join(parts))


def _undo_device_checks(node: Node) -> str:
    change = withdraw_device_drain(node)
    directory = node.config.health.textfile_directory
    for path in (node.paths.device_record, node.paths.under_root(f"{directory}/{METRICS}") if directory else ""):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    return change or "GPUs and EFA devices are no longer checked"


STEP = OptionalStep("device_checks", _check_devices_for_log, no_changes, _undo_device_checks, roles=(Role.COMPUTE,))
