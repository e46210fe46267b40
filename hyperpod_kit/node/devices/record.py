"""What the last look found, kept until the next: how often in a row, and whether anybody else is to know.

/run/hyperpod-kit/devices.json is gone after a reboot, as most faults are.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Optional, Tuple

from hyperpod_kit.node.devices.findings import ANSWERED, DeviceFinding, DeviceObservation, judge
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, write_volatile_json
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json


@dataclass(frozen=True)
class DeviceRecord:
    """gpus, efas: how many answered, None where they were not counted; gpus_expected, efas_expected: None where nobody
    knows."""

    checked_at: float = 0.0
    instance_type: str = ""
    gpus: Optional[int] = None
    gpus_expected: Optional[int] = None
    efas: Optional[int] = None
    efas_expected: Optional[int] = None
    findings: Tuple[DeviceFinding, ...] = ()

    @property
    def faults(self) -> Tuple[DeviceFinding, ...]:
        return tuple(finding for finding in self.findings if finding.is_fault)

    @property
    def device_counts_text(self) -> str:
        """How many devices there are of how many: `8 of 8 GPUs, 32 of 32 EFA devices`."""
        counts = [
            _count_text(self.gpus, self.gpus_expected, "GPUs"),
            _count_text(self.efas, self.efas_expected, "EFA devices"),
        ]
        if self.gpus_expected is None:
            counts.insert(
                0, "unknown whether this node should have GPUs: neither its instance type nor the PCI bus shows it"
            )
        return ", ".join(part for part in counts if part) or "this node should have no GPU and no EFA device"


def _count_text(count: Optional[int], expected: Optional[int], what: str) -> str:
    if not expected:
        return ""
    return f"{'?' if count is None else count} of {expected} {what}"


def make_record(observation: DeviceObservation, before: Optional[DeviceRecord], now: float) -> DeviceRecord:
    """Judge an observation, and return its record, with how many checks in a row have found each thing. Pure."""
    earlier_looks = {finding.name: finding.looks for finding in (before.findings if before else ())}
    return DeviceRecord(
        now,
        observation.instance_type,
        len(observation.gpus) if observation.smi.outcome == ANSWERED else None,
        observation.expected_or_bus_gpu_count,
        len(observation.efas) if observation.fi_info.outcome == ANSWERED else None,
        observation.efas_expected,
        tuple(replace(finding, looks=earlier_looks.get(finding.name, 0) + 1) for finding in judge(observation)),
    )


def describe_finding_changes(before: Optional[DeviceRecord], after: DeviceRecord) -> List[str]:
    """A line for each finding that is new, and for each that is over; one for a first look with none."""
    old = {finding.name: finding for finding in (before.findings if before else ())}
    new = {finding.name: finding for finding in after.findings}
    lines = [f"{name}: {finding.detail}" for name, finding in new.items() if name not in old]
    lines += [f"{name}: over" for name in old if name not in new]
    if not lines and before is None:
        return [after.device_counts_text]
    return lines


def load_device_record(node: Node) -> Optional[DeviceRecord]:
    """Load the record of the last check; None before the first since boot."""
    try:
        return dataclass_from_json(DeviceRecord, read_json(node.paths.device_record))
    except ValueError:
        return None  # of another version


def save_device_record(node: Node, record: DeviceRecord) -> None:
    write_volatile_json(node.paths.device_record, dataclass_to_json(record))


def recorded_finding_lines(node: Node) -> List[str]:
    """Return a line for each recorded finding, for reports about the whole node."""
    record = load_device_record(node)
    return [f"{finding.name}: {finding.detail}" for finding in (record.findings if record else ())]
