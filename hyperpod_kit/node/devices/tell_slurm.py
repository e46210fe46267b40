"""Make Slurm's word about this node agree with its devices (wish.py says how), as often as it takes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Optional, Sequence

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices.findings import DeviceFinding
from hyperpod_kit.node.devices.wish import ACTION_REBOOT, CLEAR, ToldSlurm, order, wish
from hyperpod_kit.node.files import jot, read_json, read_text, write_json
from hyperpod_kit.node.slurm import drain
from hyperpod_kit.slurm.versions import HOLDS_BY_REASON

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
        refused = refused_at(node)
        found = order(
            wished,
            note.reason,
            shown.reason,
            holds=HOLDS_BY_REASON.search(shown.state) is not None,
            draining=shown.draining,
            by_our_gate=refused is not None and drain.is_prolog_error(shown, refused),
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
            os.unlink(node.paths.devices_gate_mark)
    return found.words


def _is_due(node: Node, wished: str, note: ToldSlurm, now: float) -> bool:
    if wished != note.wish or refused_at(node) is not None:
        return True
    return not note.settled and not 0 <= now - note.at < drain.AGAIN_AFTER


def refused_at(node: Node) -> Optional[float]:
    """Unix time at which the gate last refused a job for a device and nobody has looked since; None without."""
    mark = read_json(node.paths.devices_gate_mark)
    at = mark.get("at") if isinstance(mark, dict) else None
    return float(at) if isinstance(at, (int, float)) else None


def note_refusal(node: Node) -> None:
    """Slurm drains this node with its own words, `Prolog error`: this is how we know that they are about us."""
    jot(node.paths.devices_gate_mark, {"at": node.clock.wall()})


def _boot(node: Node) -> str:
    return (read_text(node.paths.boot_id) or "").strip()


def _keep(node: Node, note: ToldSlurm) -> None:
    write_json(node.paths.devices_note, note.to_dict())
