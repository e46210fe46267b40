"""What Slurm is to be told of this node's devices, and what becomes of that beside what others told it. Pure.

HyperPod acts on a node whose reason is, to the letter, `Action:Reboot` or `Action:Replace`. Such a reason is given once
and never taken back: from then on the node is HyperPod's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from hyperpod_kit.model.accelerators import REBOOT, REPLACE, REPORT
from hyperpod_kit.node.devices.findings import Cure, DeviceFinding
from hyperpod_kit.slurm.control import MOUNT_REASON

REASON = "hyperpod-kit:device:"
ACTION_REPLACE, ACTION_REBOOT = "Action:Replace", "Action:Reboot"
FOR_HYPERPOD = (ACTION_REPLACE, ACTION_REBOOT)

LOOKS = 3
"""Looks in a row that must find a fault before Slurm is told of it."""

REBOOT_AGAIN = 24 * 3600.0
"""Seconds in which a node is rebooted at most once: what a reboot has not cured, the next will not."""

CLEAR = ""
"""Wish: nothing of ours should hold the node."""


@dataclass(frozen=True)
class SlurmNote:
    """What was told to Slurm, on disk: it outlives a reboot.

    wish: the last; reason: of ours, or for HyperPod, that was given; settled: whether Slurm agreed; at, rebooted_at:
    Unix seconds, 0.0 for never; boot: the one in which a reboot was asked for.
    """

    wish: str = CLEAR
    reason: str = CLEAR
    settled: bool = True
    at: float = 0.0
    rebooted_at: float = 0.0
    boot: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse_or_empty(cls, raw: Any) -> SlurmNote:
        """Make a note of what is stored on disk; an empty one of anything else."""
        none = cls()
        try:
            note = cls(**raw)
        except TypeError:
            return none
        alike = all(type(value) is type(getattr(none, name)) for name, value in asdict(note).items())
        if alike:
            return note
        return none


def desired_reason_or_none_to_leave(
    findings: Sequence[DeviceFinding], action: str, note: SlurmNote, boot: str, now: float
) -> Optional[str]:
    """Return the reason that Slurm should hold this node for, CLEAR for none, or None: no fault has lasted
    long enough, so nothing is to be changed."""
    if action == REPORT:
        return None
    faults = [finding for finding in findings if finding.is_fault]
    if not faults:
        return CLEAR
    lasting = [finding for finding in faults if finding.looks >= LOOKS]
    if not lasting:
        return None
    worst = max(lasting, key=lambda finding: finding.cure)
    if action == REPLACE and worst.cure == Cure.REPLACE:
        return ACTION_REPLACE
    if action in (REBOOT, REPLACE) and worst.cure >= Cure.REBOOT and _is_reboot_pending_or_allowed(note, boot, now):
        return ACTION_REBOOT
    return f"{REASON}{worst.name}"


def _is_reboot_pending_or_allowed(note: SlurmNote, boot: str, now: float) -> bool:
    if note.reason == ACTION_REBOOT and boot and note.boot == boot:
        return True  # it was asked for, and has not happened yet
    # A clock that was set back does not make it one more day: rather a person than a node that is restarted for ever.
    return not note.rebooted_at or abs(now - note.rebooted_at) >= REBOOT_AGAIN


@dataclass(frozen=True)
class SlurmDecision:
    """What to tell Slurm. update: words of `scontrol update`, none for nothing; summary: what was done and why; reason:
    ours that stands then; agreed: whether that is what was wished for."""

    update: Tuple[str, ...] = ()
    summary: str = ""
    reason: str = CLEAR
    agreed: bool = True


def decide_update(
    desired: str, last_given: str, shown_reason: str, *, holds: bool, draining: bool, by_our_gate: bool
) -> SlurmDecision:
    """Decide how to update the node in Slurm. last_given: the reason that the kit gave last; shown_reason:
    what Slurm shows now; holds: whether it keeps jobs away for it; draining: whether the node is drained;
    by_our_gate: whether it is Slurm's text for a refusal of the kit's gate."""
    if shown_reason in FOR_HYPERPOD and holds:
        return SlurmDecision(
            summary=f"left to HyperPod: {shown_reason}",
            reason=last_given,
            agreed=shown_reason == desired or desired == CLEAR,
        )
    is_kit_reason = by_our_gate or shown_reason.startswith(REASON) or bool(last_given and shown_reason == last_given)
    if desired == CLEAR:
        if draining and is_kit_reason:
            # Not `resume`, which would also bring up a node that Slurm has down for a reason of its own.
            return SlurmDecision(("state=undrain",), f"undrained: {shown_reason} is over")
        return SlurmDecision()
    acts = desired in FOR_HYPERPOD
    of_a_mount = shown_reason.startswith(MOUNT_REASON)
    if shown_reason and holds and not is_kit_reason and not (of_a_mount and acts):
        return SlurmDecision(summary=f"left as it is: {shown_reason}", reason=last_given, agreed=False)
    if not holds and last_given == desired:
        return SlurmDecision(summary="left as it is: somebody has resumed this node", reason=desired)
    if holds and shown_reason == desired:
        return SlurmDecision(reason=desired)
    # `fail` is what HyperPod looks for. A job that runs goes on in both states; no new one begins.
    if acts:
        verb = "fail"
    else:
        verb = "drain"
    return SlurmDecision((f"state={verb}", f"reason={desired}"), f"{verb}: {desired}", desired)
