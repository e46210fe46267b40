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


PIECE = 256 << 10
"""Characters that are read at once."""
_LONGEST = 4 * PIECE
"""Characters of one record: CloudTrail's own are at most 256 KB."""
_BEGIN = re.compile(r'\s*\{\s*"Records"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def entries(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """One file of `{"Records": […]}`, on one line or many, decoded record by record; of one that is damaged or cut
    what comes before that, and a gap."""
    pieces, decoder = iter(lines), json.JSONDecoder()
    text, number = next(pieces, ""), 0
    while len(text) < PIECE and not _BEGIN.match(text) and (piece := next(pieces, "")):
        text += piece
    begin = _BEGIN.match(text)
    if begin is None:
        yield AuditGap(0.0, 0.0, SOURCE, f"{name}:whole", f"{name} is no file of CloudTrail, or is cut", "")
        return
    text = text[begin.end() :]
    while True:
        between = _BETWEEN.match(text)
        text = text[between.end() :] if between else text
        if text.startswith("]"):
            return
        try:
            record, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            piece = next(pieces, "") if len(text) < _LONGEST else ""
            if not piece:
                why = f"{name} is no file of CloudTrail from record {number + 1} on, or is cut"
                yield AuditGap(0.0, 0.0, SOURCE, f"{name}:whole", why, "")
                return
            text += piece
            continue
        text, number = text[end:], number + 1
        yield from _entry(record, name, number)


def _entry(record: Any, name: str, number: int) -> Iterator[Entry]:
    try:
        if record.get("eventSource") == "s3.amazonaws.com":
            yield _record(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield AuditGap(0.0, 0.0, SOURCE, f"{name}:{number}", f"{name}, record {number}, cannot be read", "")


def _record(body: Mapping[str, Any]) -> AuditRecord:
    asked = body.get("requestParameters") or {}
    who = body.get("userIdentity") or {}
    when = datetime.fromisoformat(str(body["eventTime"]).replace("Z", "+00:00")).timestamp()
    place = f"s3://{asked.get('bucketName', '')}/{asked.get('key', '')}"
    return AuditRecord(
        when,
        SOURCE,
        str(body["eventID"]),
        OPERATIONS.get(str(body["eventName"]), str(body["eventName"])),
        place,
        host=str(body.get("sourceIPAddress", "")),
        user=str(who.get("arn") or who.get("principalId") or who.get("type") or ""),
        command=str(body.get("userAgent", ""))[:200],
        result=str(body.get("errorCode", "")),
        note="the node's role: any of its users" if "assumed-role" in str(who.get("arn", "")) else "",
    )
