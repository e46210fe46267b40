"""One look of the timer's: count, keep, say what changed, leave metrics, tell Slurm.

In a unit of its own: an nvidia-smi that hangs must not hold up the checks of the mounts.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Iterator, List, Optional, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node.devices import record as device_record
from hyperpod_kit.node.devices.collect import observe_devices
from hyperpod_kit.node.devices.record import DeviceRecord, describe_finding_changes, make_record
from hyperpod_kit.node.devices.slurm_state import drain_or_undrain_for_devices
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_volatile
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.system.bounded_child import call_in_child

METRICS = "hyperpod_kit_devices.prom"


@dataclass(frozen=True)
class DeviceCycle:
    """said: lines for a person, of what changed."""

    record: DeviceRecord
    messages: Tuple[str, ...] = ()


def check_devices_record_and_update_slurm(node: Node, checks: DeviceChecks) -> Optional[DeviceCycle]:
    """Check the devices once: save the record, update Slurm and write metrics; None when another check is at
    it."""
    with hold_lock(node, "devices", seconds=0) as locked:
        if locked:
            return _check_devices_record_and_update_slurm(node, checks)
        return None


def _check_devices_record_and_update_slurm(node: Node, checks: DeviceChecks) -> DeviceCycle:
    before = device_record.load_device_record(node)
    record = make_record(observe_devices(node, checks), before, node.clock.wall())
    messages: List[str] = describe_finding_changes(before, record)
    try:
        device_record.save_device_record(node, record)
    except OSError as err:
        messages.append(f"{node.paths.device_record}: {err.strerror}: failures are not counted")
    try:
        slurm_message = drain_or_undrain_for_devices(node, record.findings, checks.action)
    except NodeError as err:
        slurm_message = err.message
    if slurm_message:
        messages.append(slurm_message)
    directory = node.config.health.textfile_directory
    if directory:
        path = f"{directory}/{METRICS}"
        try:
            # Another may be at home there, and have something mounted that hangs.
            call_in_child(path, partial(write_volatile, node.paths.under_root(path), render_metrics(record)), 5.0)
        except NodeError as err:
            messages.append(f"no metrics: {err.message}")
    return DeviceCycle(record, tuple(messages))


def render_metrics(record: DeviceRecord) -> str:
    """All series, for the node exporter. Pure."""
    return "\n".join(_metric_lines(record)) + "\n"


def _metric_lines(record: DeviceRecord) -> Iterator[str]:
    for name, value, help_text in (
        ("gpus", record.gpus, "GPUs that nvidia-smi lists."),
        ("gpus_expected", record.gpus_expected, "GPUs that this instance type has."),
        ("efa_devices", record.efas, "EFA devices that fi_info lists."),
        ("efa_devices_expected", record.efas_expected, "EFA devices that this instance type has."),
    ):
        if value is not None:
            yield from (f"# HELP hyperpod_kit_{name} {help_text}", f"# TYPE hyperpod_kit_{name} gauge")
            yield f"hyperpod_kit_{name} {value}"
    yield "# HELP hyperpod_kit_device_faults Faults of GPUs and EFA devices that would make a job fail on this node."
    yield "# TYPE hyperpod_kit_device_faults gauge"
    yield f"hyperpod_kit_device_faults {len(record.faults)}"
    if record.findings:
        yield "# HELP hyperpod_kit_device_finding 1 for each fault of a GPU or an EFA device."
        yield "# TYPE hyperpod_kit_device_finding gauge"
    for finding in record.findings:
        if finding.is_fault:
            fault = "true"
        else:
            fault = "false"
        labels = f'subject="{finding.subject}",state="{finding.state}",fault="{fault}"'
        yield f"hyperpod_kit_device_finding{{{labels}}} 1"
