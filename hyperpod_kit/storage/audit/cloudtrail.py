"""CloudTrail's files: data events of S3 (`AWS::S3::Object`). Who: an AWS identity, and on HyperPod all nodes have one.

Format: "CloudTrail record contents" of its user guide. Digest files of CloudTrail itself prove that files are whole:
`aws cloudtrail validate-logs`.
"""

from __future__ import annotations

import json
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


def entries(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """One file of `{"Records": […]}`, on one line or many."""
    text = "\n".join(lines)
    try:
        records = json.loads(text)["Records"]
    except (ValueError, KeyError, TypeError, RecursionError):
        yield AuditGap(0.0, 0.0, SOURCE, f"{name}:whole", f"{name} is no file of CloudTrail, or is cut", "")
        return
    for number, record in enumerate(records if isinstance(records, list) else [], 1):
        try:
            if record.get("eventSource") == "s3.amazonaws.com":
                yield _record(record)
        except (KeyError, TypeError, ValueError, AttributeError):
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
