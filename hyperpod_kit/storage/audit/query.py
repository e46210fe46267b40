"""Questions to the ledger: by path, user, job, operation and time; records are joined with Slurm's accounting here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.audit.record import AuditGap

MOST = 100_000


@dataclass(frozen=True)
class AuditQuestion:
    """None and "" ask nothing. `path`: the file or everything below it; user: a name, or a uid in digits."""

    path: str = ""
    user: str = ""
    job: str = ""
    operation: str = ""
    since: float = 0.0
    until: float = 4e9
    limit: int = 1000


@dataclass(frozen=True)
class AuditAnswer:
    """`rows`: records, each with `job` and `by` from accounting where the log had none; `more`: there are more rows."""

    rows: list[dict[str, Any]]
    gaps: list[AuditGap]
    more: bool


def ask(ledger: AuditLedger, question: AuditQuestion) -> AuditAnswer:
    """The answer. A question by job looks at the joined rows, as the log alone may not know it."""
    where, values = ["time >= ?", "time <= ?"], [question.since, question.until]
    more: list[Any] = []
    if question.path:
        whole = question.path.rstrip("/") or "/"
        below = whole if whole.endswith("/") else f"{whole}/"
        test = "({0} = ? or substr({0}, 1, length(?)) = ?)"
        where.append(f"({test.format('path')} or {test.format('new_path')})")
        more += [whole, below, below] * 2
    if question.operation:
        where.append("op = ?")
        more.append(question.operation)
    if question.user.isdigit():
        where.append("uid = ?")
        more.append(int(question.user))
    wanted = question.limit + 1 if not (question.job or question.user) else MOST
    found = []
    for row in ledger.rows(" and ".join(where), [*values, *more], wanted):
        joined = join(ledger, row)
        if question.job and joined["job"] != question.job:
            continue
        if question.user and not question.user.isdigit() and joined["user"] != question.user:
            continue
        found.append(joined)
        if len(found) > question.limit:
            break
    shown = found[: question.limit]
    return AuditAnswer(shown, ledger.gaps(question.since, question.until), len(found) > len(shown))


def join(ledger: AuditLedger, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the job that its user had on that node then, where it has none and there was exactly one."""
    if row["uid"] < 0 or not row["host"] or (row["job"] and row["user"]):
        return row
    jobs = ledger.jobs_of(row["uid"], row["host"], row["time"])
    joined = dict(row)
    if jobs and not row["user"]:
        joined["user"] = jobs[0][1]
    if not row["job"] and len(jobs) == 1:
        joined |= {"job": jobs[0][0], "by": "accounting"}
    elif not row["job"] and jobs:
        joined["note"] = "; ".join(filter(None, (row["note"], f"one of {len(jobs)} jobs of that user there")))
    return joined
