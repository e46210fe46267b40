"""CloudTrail's files: data events of S3 (`AWS::S3::Object`). Who: an AWS identity, and on HyperPod all nodes have one.

Format: "CloudTrail record contents" of its user guide. Digest files of CloudTrail itself prove that files are whole:
`aws cloudtrail validate-logs`.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Iterable, Iterator, Mapping

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry

SOURCE = "cloudtrail"
OPERATIONS = {
    "GetObject": "read",
    "HeadObject": "read",
    "PutObject": "write",
    "CompleteMultipartUpload": "write",
    "CopyObject": "write",
    "DeleteObject": "delete",
    "DeleteObjects": "delete",
    "RenameObject": "rename",
    "ListObjects": "list",
    "ListObjectsV2": "list",
}


CHUNK = 256 << 10
"""Characters that are read at once."""
_MAX_RECORD = 4 * CHUNK
"""Characters of one record: CloudTrail's own are at most 256 KB."""
_BEGIN = re.compile(r'\s*\{\s*"Records"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def parse_entries_until_damage(lines: Iterable[str], log_name: str) -> Iterator[Entry]:
    """Parse one file of `{"Records": […]}`, on one line or many, decoded record by record; of one that is damaged or
    cut what comes before that, and a gap."""
    chunks, decoder = iter(lines), json.JSONDecoder()
    text, number = next(chunks, ""), 0
    while len(text) < CHUNK and not _BEGIN.match(text) and (chunk := next(chunks, "")):
        text += chunk
    begin = _BEGIN.match(text)
    if begin is None:
        reason = f"{log_name} is not a CloudTrail file, or is truncated"
        yield AuditGap(0.0, 0.0, SOURCE, f"{log_name}:whole", reason, "")
        return
    text = text[begin.end() :]
    while True:
        between = _BETWEEN.match(text)
        if between is not None:
            text = text[between.end() :]
        if text.startswith("]"):
            return
        try:
            record, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            chunk = ""
            if len(text) < _MAX_RECORD:
                chunk = next(chunks, "")
            if not chunk:
                reason = f"{log_name} is not a CloudTrail file from record {number + 1} on, or is truncated"
                yield AuditGap(0.0, 0.0, SOURCE, f"{log_name}:whole", reason, "")
                return
            text += chunk
            continue
        text, number = text[end:], number + 1
        yield from _parse_s3_event_or_gap(record, log_name, number)


def _parse_s3_event_or_gap(record: Any, log_name: str, number: int) -> Iterator[Entry]:
    try:
        if record.get("eventSource") == "s3.amazonaws.com":
            yield _parse_record(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield AuditGap(0.0, 0.0, SOURCE, f"{log_name}:{number}", f"{log_name}, record {number}, cannot be read", "")


def _parse_record(body: Mapping[str, Any]) -> AuditRecord:
    parameters = body.get("requestParameters") or {}
    identity = body.get("userIdentity") or {}
    when = datetime.fromisoformat(str(body["eventTime"]).replace("Z", "+00:00")).timestamp()
    url = f"s3://{parameters.get('bucketName', '')}/{parameters.get('key', '')}"
    note = ""
    if "assumed-role" in str(identity.get("arn", "")):
        note = "the node's role: any of its users"
    return AuditRecord(
        when,
        SOURCE,
        str(body["eventID"]),
        OPERATIONS.get(str(body["eventName"]), str(body["eventName"])),
        url,
        host=str(body.get("sourceIPAddress", "")),
        user=str(identity.get("arn") or identity.get("principalId") or identity.get("type") or ""),
        command=str(body.get("userAgent", ""))[:200],
        result=str(body.get("errorCode", "")),
        note=note,
    )
