"""Refusals of our gates: a note on this node, and Slurm's own `Prolog error`, by which it drains the node for one.

Slurm's word is ours when both are equally old. Each age is taken from one clock: the note's from the time that has
passed on this node, the reason's from slurmctld's own answer, whose clock may be minutes off this node's. So neither a
clock that is set nor two that differ leave a node drained for a refusal that is over.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import Any, Mapping, Optional

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, try_write_volatile_json

WITHIN = 90.0
"""Seconds between a gate's refusal of a job and Slurm's own `Prolog error` for it."""

PROLOG_ERROR = "prolog error"

SECONDS = 20.0

_AS_OF = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def record_refusal(node: Node, path: str, **more: str) -> None:
    """Record in `path` that a gate has refused a job just now, with the wall clock's and the monotonic time."""
    try_write_volatile_json(
        path, {"at": node.clock.wall(), "boot": _boot_id(node), "monotonic": node.clock.monotonic(), **more}
    )


def read_refusal(path: str) -> Optional[Mapping[str, Any]]:
    """Read the record of a refusal that has not been handled since; None without one."""
    refusal = read_json(path)
    if isinstance(refusal, dict) and isinstance(refusal.get("at"), (int, float)):
        return refusal
    return None


def refusal_age(node: Node, refusal: Mapping[str, Any]) -> float:
    """Seconds since the refusal; by the wall clock where the note does not say more, as builds before 0.1.0."""
    moment = refusal.get("monotonic")
    if isinstance(moment, (int, float)) and refusal.get("boot") == _boot_id(node):
        return node.clock.monotonic() - moment
    return node.clock.wall() - float(refusal["at"])


def is_prolog_error_for(node: Node, reason: str, reason_at: float, refusal: Mapping[str, Any], scontrol: str) -> bool:
    """Whether a reason, given at that time by slurmctld's clock, is Slurm's `Prolog error` for this refusal."""
    if reason.lower() != PROLOG_ERROR:
        return False
    return abs(_query_controller_clock(node, scontrol) - reason_at - refusal_age(node, refusal)) <= WITHIN


def _query_controller_clock(node: Node, scontrol: str) -> float:
    """Query what slurmctld's clock shows, in Unix seconds; this node's time where it does not respond."""
    try:
        # Times in UTC: they are formatted here.
        output = node.runner.run([scontrol, "show", "config"], timeout=SECONDS, env={"TZ": "UTC"})
        match = _AS_OF.search(output.stdout)
        if match:
            return float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")))
        return _local_time(node)
    except (RunError, ValueError):
        return _local_time(node)


def _local_time(node: Node) -> float:
    return node.clock.wall()


def _boot_id(node: Node) -> str:
    return (read_text(node.paths.boot_id) or "").strip()
