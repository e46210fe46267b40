"""Make Slurm's word about this node agree with its devices (desired_state.py says how), as often as it takes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Sequence

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices.desired_state import (
    ACTION_REBOOT,
    CLEAR,
    SlurmNote,
    decide_update,
    desired_reason_or_none_to_leave,
)
from hyperpod_kit.node.devices.findings import DeviceFinding
from hyperpod_kit.node.files import read_json, read_text, write_json
from hyperpod_kit.node.slurm import drain, gate_refusal
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON
from hyperpod_kit.untrusted import by_descriptor

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
            f"Slurm was not told of this node's devices: {err.message}",
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
    write_json(node.paths.last_devices_drain_request_note, note.to_dict())
