"""What a command prints with `--json`: an object that begins with the name and the number of its format.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

FORMAT_NUMBERS: Dict[str, int] = {
    "checkpoint bench": 1,
    "checkpoint diff": 1,
    "checkpoint export": 1,
    "checkpoint flush": 1,
    "checkpoint get": 1,
    "checkpoint import": 1,
    "checkpoint ls": 1,
    "checkpoint prune": 1,
    "checkpoint repair": 1,
    "checkpoint show": 1,
    "checkpoint torture": 1,
    "checkpoint verify": 1,
    "config show": 1,
    "connect": 1,
    "create-cluster": 1,
    "data bench": 1,
    "data index": 1,
    "data make-corpus": 1,
    "data merge": 1,
    "data show": 1,
    "data split": 1,
    "data stage": 1,
    "data tokenize": 1,
    "data verify": 1,
    "data verify-ledger": 1,
    "delete-cluster": 1,
    "delete-node": 1,
    "describe-cluster": 1,
    "diagnose": 1,
    "diff": 1,
    "events": 1,
    "explain": 1,
    "fan-out": 1,
    "fleet": 1,
    "health-check": 1,
    "infra template": 1,
    "job doctor": 1,
    "job goodput": 1,
    "job lint": 1,
    "job prove": 1,
    "job rewind": 1,
    "job status": 1,
    "job sweep": 1,
    "list-cluster-nodes": 1,
    "list-clusters": 1,
    "node actions": 1,
    "node apply": 1,
    "node devices": 1,
    "node facts": 1,
    "node health": 1,
    "node mounts": 1,
    "node plan": 1,
    "node slurm": 1,
    "operations": 1,
    "reboot-node": 1,
    "rehearse sandbox": 1,
    "rehearse status": 1,
    "render": 1,
    "replace-node": 1,
    "rollout resume": 1,
    "rollout start": 1,
    "rollout status": 1,
    "rollout undo": 1,
    "storage audit import": 1,
    "storage audit jobs": 1,
    "storage audit query": 1,
    "storage audit retain": 1,
    "storage audit verify": 1,
    "storage bench": 1,
    "storage plan": 1,
    "storage preload": 1,
    "storage quota check": 1,
    "storage quota resume": 1,
    "storage quota set": 1,
    "storage quota show": 1,
    "storage quota stop": 1,
    "storage request": 1,
    "storage requests approve": 1,
    "storage requests deny": 1,
    "storage requests list": 1,
    "storage requests open": 1,
    "storage tier": 1,
    "storage usage": 1,
    "support-bundle": 1,
    "update-cluster": 1,
    "update-software": 1,
    "upload": 1,
    "users apply": 1,
    "validate": 1,
    "validate-mounts": 1,
    "wait": 1,
}
"""The number of each command's format. It is raised when a key is removed, renamed or gets another meaning."""


def format_name(command: str) -> str:
    """Return the name of a command's format with its number. Raises KeyError."""
    return f"hpk-{command.replace(' ', '-')}/{FORMAT_NUMBERS[command]}"


def document(command: str, fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the object that a command prints: `format` first, then the fields.

    A field of that name, as in the answer of a server, gives way. Raises KeyError for a command without a number.
    """
    name = {"format": format_name(command)}
    return {**name, **fields, **name}
