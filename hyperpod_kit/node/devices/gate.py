"""The Prolog's second question: are the GPUs and EFA devices fit for a job? Bounded, and without a Slurm command.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.accelerators import REPORT
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices import record
from hyperpod_kit.node.devices.findings import DeviceFinding, judge
from hyperpod_kit.node.devices.look import look
from hyperpod_kit.node.devices.tell_slurm import note_refusal

WITHIN = 36.0
"""Seconds after the gate's own start by which all is said: the Prolog allows 40."""

LONGEST = 20.0
SHORTEST = 3.0
"""Seconds that a look may take; with less left, what the timer found last counts."""


def refusal(node: Node, asked: DeviceChecks, began: float) -> str:
    """Why no job may start, in one line; "" when one may. began: of the gate, monotonic."""
    now = node.clock.monotonic()
    left = began + WITHIN - now
    if left < SHORTEST:
        before = record.load(node)
        faults: Sequence[DeviceFinding] = before.faults if before else ()
    else:
        seen = look(node, asked, each=LONGEST, end=now + min(LONGEST, left), dcgm=asked.dcgm)
        faults = [finding for finding in judge(seen) if finding.is_fault]
    if not faults:
        return ""
    # What dcgmi found is not looked for again by the timer, which must not take the refusal back then.
    if asked.action != REPORT and any(finding.subject != "dcgm" for finding in faults):
        note_refusal(node)
    return "hyperpod-kit: " + "; ".join(f"{finding.name}: {finding.detail}" for finding in faults)
