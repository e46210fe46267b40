"""What `hyperpod-kit node audit` wrote on a node: whether its chain holds is looked at while it is read."""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry
from hyperpod_kit.system import hash_chain

SOURCE = "node"


def parse_entries_marking_chain_gaps(lines: Iterable[str], log_name: str) -> Iterator[Entry]:
    """Parse a node's audit log. A broken link is a gap: lines are missing there, or one was changed."""
    last, expected = 0.0, None
    for number, body, follows in hash_chain.iter_checked_lines(line for line in lines if line.strip()):
        host, count = str(body.get("host", "")), _line_number(body)
        if not follows:
            reason = (
                f"{log_name}, line {number}, does not follow from the line before it: lines were changed, "
                "truncated or lost"
            )
            yield AuditGap(last, _time_or_last(body, last), SOURCE, f"{log_name}:{number}:chain", reason, host)
        elif expected is not None and count != expected:
            yield AuditGap(
                last,
                _time_or_last(body, last),
                SOURCE,
                f"{log_name}:{number}:number",
                f"{log_name}: lines are missing",
                host,
            )
        expected = None
        if count is not None:
            expected = count + 1
        last = _time_or_last(body, last)
        if body:
            yield from _parse_record_or_gap(body, f"{host}:{count}:{last}")


def _parse_record_or_gap(body: dict[str, Any], id: str) -> Iterator[Entry]:
    operation, host = str(body.get("op", "")), str(body.get("host", ""))
    when = _time_or_last(body, math.nan)
    if math.isnan(when):
        yield AuditGap(0.0, 0.0, SOURCE, id, f"a line of {host} has no valid time", host)
        return
    if operation == "gap":
        yield AuditGap(when, when, SOURCE, id, str(body.get("why", "")), host)
        return
    note = str(body.get("why", ""))
    if body.get("seen") == "earlier":
        note = "the process had ended: its identity is that of its last open or exec"
    try:
        yield AuditRecord(
            when,
            SOURCE,
            id,
            operation,
            str(body.get("path", "")),
            str(body.get("new_path", "")),
            host,
            int(body.get("uid", -1)),
            str(body.get("user", "")),
            int(body.get("pid", 0)),
            str(body.get("command", "")),
            str(body.get("job", "")),
            str(body.get("job_by", "")),
            "",
            note,
        )
    except (TypeError, ValueError, OverflowError):
        yield AuditGap(when, when, SOURCE, id, f"a line of {host} has no valid numbers", host)


def _time_or_last(body: dict[str, Any], last: float) -> float:
    """Read when it was; `last` where the line does not say, or says what no clock shows."""
    time = body.get("time", last)
    if not isinstance(time, (int, float)) or isinstance(time, bool):
        return last
    try:
        return float(time) if math.isfinite(time) else last
    except OverflowError:
        return last


def _line_number(body: dict[str, Any]) -> int | None:
    """Read the line's own number, None where it has none that a writer gives."""
    count = body.get("number")
    if not isinstance(count, int) or not 0 <= count < 1 << 63:
        return None
    return count
