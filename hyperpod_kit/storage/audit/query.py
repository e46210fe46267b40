"""Questions to the ledger: by path, user, job, operation and time; records are joined with Slurm's accounting here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.audit.record import AuditGap

MAX_ROWS = 100_000


@dataclass(frozen=True)
class AuditQuery:
    """A question to the ledger; None and "" ask nothing.

    `path`: the file or everything below it; user: a name, or a uid in digits.
    """

    path: str = ""
    user: str = ""
    job: str = ""
    operation: str = ""
    since: float = 0.0
    until: float = 4e9
    limit: int = 1000


@dataclass(frozen=True)
class AuditResult:
    """Answer to a query.

    `rows`: records, each with `job` and `by` from accounting where the log had none; `more`: there are more rows.
    """

    rows: list[dict[str, Any]]
    gaps: list[AuditGap]
    more: bool


def run_query(ledger: AuditLedger, query: AuditQuery) -> AuditResult:
    """Answer a query. A question by job looks at the joined rows, as the log alone may not know it."""
    where, values = ["time >= ?", "time <= ?"], [query.since, query.until]
    parameters: list[Any] = []
    if query.path:
        path = query.path.rstrip("/") or "/"
        below = path.rstrip("/") + "/"
        condition = "({0} = ? or substr({0}, 1, length(?)) = ?)"
        where.append(f"({condition.format('path')} or {condition.format('new_path')})")
        parameters += [path, below, below] * 2
    if query.operation:
        where.append("op = ?")
        parameters.append(query.operation)
    if query.user.isdigit():
        where.append("uid = ?")
        parameters.append(int(query.user))
    limit = query.limit + 1
    if query.job or query.user:
        limit = MAX_ROWS
    matches = []
    for row in ledger.select_records(" and ".join(where), [*values, *parameters], limit):
        joined = join_accounting(ledger, row)
        if query.job and joined["job"] != query.job:
            continue
        if query.user and not query.user.isdigit() and joined["user"] != query.user:
            continue
        matches.append(joined)
        if len(matches) > query.limit:
            break
    shown = matches[: query.limit]
    return AuditResult(shown, ledger.gaps_overlapping_or_undated(query.since, query.until), len(matches) > len(shown))


def join_accounting(ledger: AuditLedger, row: dict[str, Any]) -> dict[str, Any]:
    """Fill in the job that the row's user had on that node then, where it has none and there was exactly one."""
    if row["uid"] < 0 or not row["host"] or (row["job"] and row["user"]):
        return row
    jobs = ledger.job_ids_and_user_names_at(row["uid"], row["host"], row["time"])
    joined = dict(row)
    if jobs and not row["user"]:
        joined["user"] = jobs[0][1]
    if not row["job"] and len(jobs) == 1:
        joined |= {"job": jobs[0][0], "by": "accounting"}
    elif not row["job"] and jobs:
        joined["note"] = "; ".join(filter(None, (row["note"], f"one of {len(jobs)} jobs of that user on that host")))
    return joined
