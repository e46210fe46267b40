"""The Prolog's second question: are the GPUs and EFA devices fit for a job? Bounded, and without a Slurm command.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.accelerators import REPORT
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node.devices import record
from hyperpod_kit.node.devices.collect import observe_devices
from hyperpod_kit.node.devices.findings import DeviceFinding, judge
from hyperpod_kit.node.devices.slurm_state import record_gate_refusal
from hyperpod_kit.node.machine.context import Node

WITHIN = 36.0
"""Seconds after the gate's own start by which all is said: the Prolog allows 40."""

LONGEST = 20.0
SHORTEST = 3.0
"""Seconds that a look may take; with less left, what the timer found last counts."""


def refusal_for_device_faults_recording_it(node: Node, checks: DeviceChecks, gate_started_monotonic: float) -> str:
    """Check the devices, and return why no job may start, in one line; "" when one may. A refusal is recorded.
    started_at: of the gate, monotonic."""
    now = node.clock.monotonic()
    remaining = gate_started_monotonic + WITHIN - now
    if remaining < SHORTEST:
        before = record.load_device_record(node)
        faults: Sequence[DeviceFinding]
        if before:
            faults = before.faults
        else:
            faults = ()
    else:
        observation = observe_devices(
            node,
            checks,
            seconds_per_program=LONGEST,
            monotonic_deadline=now + min(LONGEST, remaining),
            dcgm=checks.dcgm,
        )
        faults = [finding for finding in judge(observation) if finding.is_fault]
    if not faults:
        return ""
    # What dcgmi found is not looked for again by the timer, which must not take the refusal back then.
    if checks.action != REPORT and any(finding.subject != "dcgm" for finding in faults):
        record_gate_refusal(node)
    return "hyperpod-kit: " + "; ".join(f"{finding.name}: {finding.detail}" for finding in faults)
