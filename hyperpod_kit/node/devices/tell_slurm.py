"""Make Slurm's word about this node agree with its devices (wish.py says how), as often as it takes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Sequence

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices.findings import DeviceFinding
from hyperpod_kit.node.devices.wish import ACTION_REBOOT, CLEAR, ToldSlurm, order, wish
from hyperpod_kit.node.files import read_json, read_text, write_json
from hyperpod_kit.node.slurm import drain, gate_refusal
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON
from hyperpod_kit.untrusted import by_descriptor

ASKED_BY = "node devices"


def settle(node: Node, findings: Sequence[DeviceFinding], action: str) -> str:
    """Tell Slurm what is due; what was done, in words, "" for nothing. Raises NodeError when it does not answer."""
    now, boot = node.clock.wall(), _boot(node)
    note = ToldSlurm.of(read_json(node.paths.devices_note))
    wished = wish(findings, action, note, boot, now)
    if wished is None or not _is_due(node, wished, note, now):
        return ""
    return _tell(node, wished, replace(note, wish=wished, at=now), boot)


def withdraw(node: Node) -> str:
    """Take back what this module gave; for a node whose configuration asks for it no more. Raises NodeError."""
    note = ToldSlurm.of(read_json(node.paths.devices_note))
    if note.reason == CLEAR:
        return ""
    return _tell(node, CLEAR, replace(note, wish=CLEAR, at=node.clock.wall()), _boot(node))


def _tell(node: Node, wished: str, note: ToldSlurm, boot: str) -> str:
    try:
        shown = drain.show(node)
        found = order(
            wished,
            note.reason,
            shown.reason,
            holds=HOLDS_BY_REASON.search(shown.state) is not None,
            draining=shown.draining,
            by_our_gate=drain.is_for_refusal(node, shown, node.paths.devices_gate_mark),
        )
        if found.update:
            drain.update(node, *found.update)
    except RunError as err:
        _keep(node, replace(note, settled=False))
        raise NodeError(
            f"Slurm was not told of this node's devices: {err.message}",
            hint=f"on the controller: scontrol show node {node.facts.node}",
        ) from err
    if found.update:
        audit.record(
            "undrained" if wished == CLEAR else "drained", f"node {node.facts.node}", found.words, asked_by=ASKED_BY
        )
    if wished == ACTION_REBOOT and found.update:
        note = replace(note, rebooted_at=note.at, boot=boot)
    _keep(node, replace(note, reason=found.reason, settled=found.settled))
    if found.settled:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.devices_gate_mark)
    return found.words


def _is_due(node: Node, wished: str, note: ToldSlurm, now: float) -> bool:
    if wished != note.wish or has_refused(node):
        return True
    return not note.settled and not 0 <= now - note.at < drain.AGAIN_AFTER


def has_refused(node: Node) -> bool:
    """Whether the gate has refused a job for a device and nobody has looked since."""
    return gate_refusal.noted(node.paths.devices_gate_mark) is not None


def note_refusal(node: Node) -> None:
    """Slurm drains this node with its own words, `Prolog error`: this is how we know that they are about us."""
    gate_refusal.note(node, node.paths.devices_gate_mark)


def _boot(node: Node) -> str:
    return (read_text(node.paths.boot_id) or "").strip()


def _keep(node: Node, note: ToldSlurm) -> None:
    write_json(node.paths.devices_note, note.to_dict())
