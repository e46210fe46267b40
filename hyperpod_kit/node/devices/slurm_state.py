"""Make Slurm's word about this node agree with its devices, as often as it takes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Optional, Sequence, Tuple

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.accelerators import REBOOT, REPLACE, REPORT
from hyperpod_kit.node.devices.findings import Cure, DeviceFinding
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_json
from hyperpod_kit.node.slurm import drain, gate_refusal
from hyperpod_kit.slurm.control import MOUNT_REASON
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json

ASKED_BY = "node devices"


def drain_or_undrain_for_devices(node: Node, findings: Sequence[DeviceFinding], action: str) -> str:
    """Drain or undrain this node in Slurm for its devices where that is due; return what was done, in words,
    "" for nothing. Raises NodeError when Slurm does not respond."""
    now, boot = node.clock.wall(), _boot_id(node)
    note = SlurmNote.parse_or_empty(read_json(node.paths.last_devices_drain_request_note))
    desired = desired_reason_or_none_to_leave(findings, action, note, boot, now)
    if desired is None or not _is_slurm_update_due(node, desired, note, now):
        return ""
    return _update_slurm_reason_and_save_note(node, desired, replace(note, wish=desired, at=now), boot)


def withdraw_device_drain(node: Node) -> str:
    """Take the drain back that this module gave, for a node whose configuration checks no devices any more;
    return what was done. Raises NodeError."""
    note = SlurmNote.parse_or_empty(read_json(node.paths.last_devices_drain_request_note))
    if note.reason == CLEAR:
        return ""
    return _update_slurm_reason_and_save_note(
        node, CLEAR, replace(note, wish=CLEAR, at=node.clock.wall()), _boot_id(node)
    )


def _update_slurm_reason_and_save_note(node: Node, desired: str, note: SlurmNote, boot: str) -> str:
    try:
        slurm_node = drain.query_local_node(node)
        decision = decide_update(
            desired,
            note.reason,
            slurm_node.reason,
            holds=HOLDS_BY_REASON.search(slurm_node.state) is not None,
            draining=slurm_node.draining,
            by_our_gate=drain.is_prolog_error_for_recorded_refusal(
                node, slurm_node, node.paths.devices_gate_refusal_record
            ),
        )
        if decision.update:
            drain.update_local_node(node, *decision.update)
    except RunError as err:
        _save_note(node, replace(note, settled=False))
        raise NodeError(
            f"the state of this node's devices could not be reported to Slurm: {err.message}",
            hint=f"on the controller: scontrol show node {node.facts.node}",
        ) from err
    if decision.update:
        action = "drained"
        if desired == CLEAR:
            action = "undrained"
        audit.record_root_action_in_journal(action, f"node {node.facts.node}", decision.summary, asked_by=ASKED_BY)
    if desired == ACTION_REBOOT and decision.update:
        note = replace(note, rebooted_at=note.at, boot=boot)
    _save_note(node, replace(note, reason=decision.reason, settled=decision.agreed))
    if decision.agreed:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.devices_gate_refusal_record)
    return decision.summary


def _is_slurm_update_due(node: Node, desired: str, note: SlurmNote, now: float) -> bool:
    if desired != note.wish or has_unhandled_device_gate_refusal(node):
        return True
    return not note.settled and not 0 <= now - note.at < drain.AGAIN_AFTER


def has_unhandled_device_gate_refusal(node: Node) -> bool:
    """Return whether the gate has refused a job for a device, and Slurm's drain was not settled since."""
    return gate_refusal.read_refusal(node.paths.devices_gate_refusal_record) is not None


def record_gate_refusal(node: Node) -> None:
    """Record that the gate refused a job: Slurm drains this node with its own text, `Prolog error`, and this
    record tells that it is about the kit's gate."""
    gate_refusal.record_refusal(node, node.paths.devices_gate_refusal_record)


def _boot_id(node: Node) -> str:
    return (read_text(node.paths.boot_id) or "").strip()


def _save_note(node: Node, note: SlurmNote) -> None:
    write_json(node.paths.last_devices_drain_request_note, dataclass_to_json(note))


# What Slurm is to be told of this node's devices, and what becomes of that beside what others told it. Pure.
#
# HyperPod acts on a node whose reason is, to the letter, `Action:Reboot` or `Action:Replace`. Such a reason is given
# once and never taken back: from then on the node is HyperPod's.

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

    @classmethod
    def parse_or_empty(cls, raw: Any) -> SlurmNote:
        """Make a note of what is stored on disk; an empty one of anything else."""
        try:
            return dataclass_from_json(cls, raw)
        except ValueError:
            return cls()


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
            summary=f"unchanged, HyperPod handles it: {shown_reason}",
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
        return SlurmDecision(summary=f"unchanged: {shown_reason}", reason=last_given, agreed=False)
    if not holds and last_given == desired:
        return SlurmDecision(summary="unchanged: a person has resumed this node", reason=desired)
    if holds and shown_reason == desired:
        return SlurmDecision(reason=desired)
    # `fail` is what HyperPod looks for. A job that runs goes on in both states; no new one begins.
    if acts:
        verb = "fail"
    else:
        verb = "drain"
    return SlurmDecision((f"state={verb}", f"reason={desired}"), f"{verb}: {desired}", desired)
