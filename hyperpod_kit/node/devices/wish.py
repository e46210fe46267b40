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
class ToldSlurm:
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
    def of(cls, raw: Any) -> ToldSlurm:
        """Of what is on disk, whatever it is."""
        none = cls()
        try:
            found = cls(**raw)
        except TypeError:
            return none
        alike = all(type(value) is type(getattr(none, name)) for name, value in asdict(found).items())
        return found if alike else none


def wish(findings: Sequence[DeviceFinding], action: str, note: ToldSlurm, boot: str, now: float) -> Optional[str]:
    """The reason that this node should have, CLEAR, or None: no fault has been there for long enough."""
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
    if action in (REBOOT, REPLACE) and worst.cure >= Cure.REBOOT and _may_reboot(note, boot, now):
        return ACTION_REBOOT
    return f"{REASON}{worst.name}"


def _may_reboot(note: ToldSlurm, boot: str, now: float) -> bool:
    if note.reason == ACTION_REBOOT and boot and note.boot == boot:
        return True  # it was asked for, and has not happened yet
    # A clock that was set back does not make it one more day: rather a person than a node that is restarted for ever.
    return not note.rebooted_at or abs(now - note.rebooted_at) >= REBOOT_AGAIN


@dataclass(frozen=True)
class SlurmOrder:
    """What to tell Slurm. update: words of `scontrol update`, none for nothing; words: what was done and why; reason:
    ours that stands then; settled: whether that is what was wished for."""

    update: Tuple[str, ...] = ()
    words: str = ""
    reason: str = CLEAR
    settled: bool = True


def order(wished: str, given: str, reason: str, *, holds: bool, draining: bool, by_our_gate: bool) -> SlurmOrder:
    """What becomes of a wish. given: the reason that we gave last; reason: what Slurm shows now; holds: whether it
    keeps jobs away for it; draining: whether the node is drained; by_our_gate: it is Slurm's word for our gate's
    refusal."""
    if reason in FOR_HYPERPOD and holds:
        return SlurmOrder(
            words=f"left to HyperPod: {reason}", reason=given, settled=reason == wished or wished == CLEAR
        )
    ours = by_our_gate or reason.startswith(REASON) or bool(given and reason == given)
    if wished == CLEAR:
        if draining and ours:
            # Not `resume`, which would also bring up a node that Slurm has down for a reason of its own.
            return SlurmOrder(("state=undrain",), f"undrained: {reason} is over")
        return SlurmOrder()
    acts = wished in FOR_HYPERPOD
    of_a_mount = reason.startswith(MOUNT_REASON)
    if reason and holds and not ours and not (of_a_mount and acts):
        return SlurmOrder(words=f"left as it is: {reason}", reason=given, settled=False)
    if not holds and given == wished:
        return SlurmOrder(words="left as it is: somebody has resumed this node", reason=wished)
    if holds and reason == wished:
        return SlurmOrder(reason=wished)
    # `fail` is what HyperPod looks for. A job that runs goes on in both states; no new one begins.
    verb = "fail" if acts else "drain"
    return SlurmOrder((f"state={verb}", f"reason={wished}"), f"{verb}: {wished}", wished)
