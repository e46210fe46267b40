"""Run the planned steps, one line each in provisioning.log, and leave status.json.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import traceback
from typing import Callable, List, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import write_json
from hyperpod_kit.node.plan import Planned
from hyperpod_kit.node.steplog import StepRecord, append


def provision(node: Node, planned: Sequence[Planned], mode: str, say: Callable[[str], None] = print) -> bool:
    """Make this node what its configuration says; True when every required step succeeded.

    A failure does not keep the other mounts from being made: one run shows everything that is wrong.
    """
    records: List[StepRecord] = []
    failed: List[str] = []
    for item in planned:
        if failed and item.step.after_success:
            record = _record(node, item.title, "skipped", 0, detail=f"because {failed[0]} failed")
        else:
            record = _run(node, item)
            if record.status == "failed" and item.required:
                failed.append(item.title)
        records.append(record)
        append(node.paths.log, record)
        say(record.to_words())
    changed = sum(record.status == "changed" for record in records)
    summary = _record(node, "summary", "failed" if failed else "ok", sum(record.duration_ms for record in records),
                      detail=f"changed={changed}", error=f"failed: {', '.join(failed)}" if failed else "")
    append(node.paths.log, summary)
    say(f"{summary.to_words()} changed={changed}" if failed else summary.to_words())
    write_json(node.paths.status, {
        "node": node.facts.node, "instance_id": node.facts.instance_id, "role": node.facts.role,
        "bundle_id": node.bundle_id, "mode": mode, "ok": not failed, "changed": changed,
        "finished_at": node.clock.wall(), "steps": [record.to_dict() for record in records]})
    return not failed


def _run(node: Node, item: Planned) -> StepRecord:
    started = node.clock.monotonic()

    def spent() -> int:
        return round((node.clock.monotonic() - started) * 1000)

    try:
        outcome = item.step.run(node, item.subject)
    except HyperpodKitError as err:
        return _record(node, item.title, "failed", spent(), error=err.message, hint=err.hint or "")
    except Exception as err:  # a defect of ours: the log must say where, and the other steps still run
        where = traceback.extract_tb(err.__traceback__)[-1]
        return _record(node, item.title, "failed", spent(), hint="this is a defect of hyperpod-kit: please report it",
                       error=f"{type(err).__name__}: {err} ({where.filename}:{where.lineno})")
    return _record(node, item.title, "changed" if outcome.changed else "ok", spent(), detail=outcome.detail)


def _record(node: Node, step: str, status: str, duration_ms: int, *, detail: str = "", error: str = "",
            hint: str = "") -> StepRecord:
    return StepRecord(node.clock.wall(), node.facts.node, node.facts.role, step, status, duration_ms, detail, error,
                      hint)
