"""Run the planned steps, one line each in provisioning.log, and leave status.json; or only say what would change.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import traceback
from typing import Any, Callable, Dict, List, Sequence

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_json
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.machine.step import Step
from hyperpod_kit.node.machine.steplog import StepRecord, append_record

ONE_AT_A_TIME = 300.0
"""Seconds to wait for another apply: of a script that was killed, the program may still be at work."""


def apply(node: Node, planned: Sequence[Step], mode: str, print_line: Callable[[str], None] = print) -> Dict[str, Any]:
    """Run the planned steps so that this node becomes what its configuration says; return the outcome as
    status.json holds it.

    A failure does not keep the other mounts from being made: one run shows everything that is wrong. Raises
    NodeError when another apply keeps at it for too long.
    """
    with hold_lock(node, "apply", seconds=ONE_AT_A_TIME) as locked:
        if not locked:
            raise NodeError(
                f"another `hyperpod-kit node apply` has been running on this node for {ONE_AT_A_TIME:g} s",
                hint="tail /var/log/provision/provisioning.log",
            )
        return _run_steps_and_write_status(node, planned, mode, print_line)


def _run_steps_and_write_status(
    node: Node, planned: Sequence[Step], mode: str, print_line: Callable[[str], None]
) -> Dict[str, Any]:
    records: List[StepRecord] = []
    failed: List[str] = []
    for step in planned:
        if failed and step.after_success:
            record = _make_record(node, step.name, "skipped", 0, detail=f"because {failed[0]} failed")
        else:
            record = _run_step(node, step)
            if record.status == "failed" and step.required:
                failed.append(step.name)
        records.append(record)
        append_record(node.paths.provisioning_log, record)
        print_line(record.to_text())
    # Each with its reason: of a node that could not be made, AWS and `wait` show the last lines alone.
    reasons = "; ".join(f"{record.step}: {record.error}" for record in records if record.step in failed)
    changed = sum(record.status == "changed" for record in records)
    outcome, error = "ok", ""
    if failed:
        outcome, error = "failed", f"failed: {reasons}"
    duration_ms = sum(record.duration_ms for record in records)
    summary = _make_record(node, "summary", outcome, duration_ms, detail=f"changed={changed}", error=error)
    append_record(node.paths.provisioning_log, summary)
    if failed:
        print_line(f"{summary.to_text()} changed={changed}")
    else:
        print_line(summary.to_text())
    status = {
        "node": node.facts.node,
        "instance_id": node.facts.instance_id,
        "role": node.facts.role,
        "bundle_id": node.bundle_id,
        "mode": mode,
        "ok": not failed,
        "changed": changed,
        "finished_at": node.clock.wall(),
        "steps": [record.to_dict() for record in records],
    }
    write_json(node.paths.apply_status, status)
    return status


def preview(node: Node, planned: Sequence[Step]) -> List[Dict[str, Any]]:
    """Return what `apply` would do now, an entry for each step: `would` in words ("" when nothing), `error`
    and `hint` where that cannot be determined."""
    previews = []
    for step in planned:
        would, error, hint = "", "", ""
        try:
            would = step.pending(node)
        except HyperpodKitError as err:
            error, hint = err.message, err.hint or ""
        previews.append({**step.to_dict(), "would": would, "error": error, "hint": hint})
    return previews


def _run_step(node: Node, step: Step) -> StepRecord:
    started = node.clock.monotonic()

    def spent() -> int:
        return round((node.clock.monotonic() - started) * 1000)

    try:
        outcome = step.run(node)
    except HyperpodKitError as err:
        return _make_record(node, step.name, "failed", spent(), error=err.message, hint=err.hint or "")
    except Exception as err:  # a defect of ours: the log must say where, and the other steps still run
        where = traceback.extract_tb(err.__traceback__)[-1]
        return _make_record(
            node,
            step.name,
            "failed",
            spent(),
            hint="this is a defect of hyperpod-kit: please report it",
            error=f"{type(err).__name__}: {err} ({where.filename}:{where.lineno})",
        )
    status = "ok"
    if outcome.changed:
        status = "changed"
    return _make_record(node, step.name, status, spent(), detail=outcome.detail)


def _make_record(
    node: Node, step: str, status: str, duration_ms: int, *, detail: str = "", error: str = "", hint: str = ""
) -> StepRecord:
    return StepRecord(
        node.clock.wall(), node.facts.node, node.facts.role, step, status, duration_ms, detail, error, hint
    )
