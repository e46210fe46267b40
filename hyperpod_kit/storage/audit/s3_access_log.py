"""S3's server access logs: one line a request, delivered as it happens to suit S3; AWS promises no completeness.

Format: "Amazon S3 server access log format" of its user guide. A key is percent-encoded there, twice where it has such
signs itself.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Iterable, Iterator
from urllib.parse import unquote

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry, unreadable

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
BEST_EFFORT = "S3 delivers these logs as well as it can: a request may have no line"


def entries(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """Every line; and one gap over all of them, because the log promises nothing."""
    first = last = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = [next((word for word in found if word), "") for found in _FIELD.findall(line)]
        try:
            when = datetime.strptime(words[2], "%d/%b/%Y:%H:%M:%S %z").timestamp()
            bucket, host, who, request, operation, key, status = words[1], *words[3:7], words[7], words[9]
            int(status.replace("-", "0"))
        except (ValueError, IndexError, OverflowError):
            yield unreadable(SOURCE, name, number, line, last)
            continue
        first, last = first or when, when
        path = f"s3://{bucket}/{'' if key == '-' else unquote(unquote(key))}"
        yield AuditRecord(
            when,
            SOURCE,
            f"{request}:{operation}:{key}",
            _OPERATIONS.get(operation, operation),
            path,
            host=host,
            user="" if who == "-" else who,
            command=words[16] if len(words) > 16 else "",
            result="" if status.startswith("2") else status,
        )
    if first:
        yield AuditGap(first, last, SOURCE, f"{name}:best-effort", BEST_EFFORT, "")
