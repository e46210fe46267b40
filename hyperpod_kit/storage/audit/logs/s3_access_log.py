"""S3's server access logs: one line a request, delivered as it happens to suit S3; AWS promises no completeness.

Format: "Amazon S3 server access log format" of its user guide. A key is percent-encoded there, twice where it has such
signs itself.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Iterable, Iterator
from urllib.parse import unquote

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry, unreadable_line_gap

SOURCE = "s3-access-log"
_FIELD = re.compile(r'\[([^\]]*)\]|"((?:[^"\\]|\\.|"(?![ \n]|$))*)"|(\S+)')
_OPERATIONS = {
    "REST.GET.OBJECT": "read",
    "REST.HEAD.OBJECT": "read",
    "REST.PUT.OBJECT": "write",
    "REST.COPY.OBJECT": "write",
    "REST.POST.UPLOAD": "write",
    "REST.DELETE.OBJECT": "delete",
    "BATCH.DELETE.OBJECT": "delete",
    "S3.EXPIRE.OBJECT": "delete",
    "REST.GET.BUCKET": "list",
}
BEST_EFFORT = "S3 delivers these logs on a best-effort basis: a request may have no line"


def parse_entries_with_best_effort_gap(lines: Iterable[str], log_name: str) -> Iterator[Entry]:
    """Parse every line; yields one gap over all of them too, because the log promises nothing."""
    first = last = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = [next((group for group in groups if group), "") for groups in _FIELD.findall(line)]
        try:
            when = datetime.strptime(fields[2], "%d/%b/%Y:%H:%M:%S %z").timestamp()
            bucket, host, requester, request, operation, key, status = fields[1], *fields[3:7], fields[7], fields[9]
            int(status.replace("-", "0"))
        except (ValueError, IndexError, OverflowError):
            yield unreadable_line_gap(SOURCE, log_name, number, line, last)
            continue
        first, last = first or when, when
        command = ""
        if len(fields) > 16:
            command = fields[16]
        yield AuditRecord(
            when,
            SOURCE,
            f"{request}:{operation}:{key}",
            _OPERATIONS.get(operation, operation),
            f"s3://{bucket}/{unquote(unquote(_empty_if_dash(key)))}",
            host=host,
            user=_empty_if_dash(requester),
            command=command,
            result="" if status.startswith("2") else status,
        )
    if first:
        yield AuditGap(first, last, SOURCE, f"{log_name}:best-effort", BEST_EFFORT, "")


def _empty_if_dash(field: str) -> str:
    """Return a field, "" for the dash that stands for nothing."""
    return "" if field == "-" else field
