"""The S3 of an AWS that lies: what was put is there, but for what the mode says."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from tests.hostile.aws.service import Handler

DENIED = b"<Error><Code>AccessDenied</Code><Message>no \x1b[2J</Message></Error>"
MISSING = b"<Error><Code>NoSuchKey</Code><Message>there is none</Message></Error>"
BOMB = (
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">'.encode() for n in range(8))
    + b"]><ListBucketResult><Contents><Key>&i;</Key></Contents></ListBucketResult>"
)
LISTS: Mapping[str, bytes] = {
    "s3notxml": b"\x1b[31m<html>\xff not a list",
    "s3bomb": BOMB,
    "s3illegal": b"<ListBucketResult><Contents><Key>a&#27;[2J</Key><Size>x</Size></Contents></ListBucketResult>",
}
"""Mode -> the answer to every list."""
OBJECTS = ("s3wrong", "s3checksum", "s3short", "s3endless", "s3deny")
MODES = [*LISTS, "s3pages", "s3pages2", "s3redir", *OBJECTS]
"""Modes that speak of S3 alone; all else answers well."""


class Stored(NamedTuple):
    data: bytes
    checksum: str


class Objects:
    """What was put: path -> object."""

    def __init__(self) -> None:
        self._there: Dict[str, Stored] = {}

    def answer(self, handler: Handler, mode: str, body: bytes) -> None:
        """One request of S3's."""
        split = urlsplit(handler.path)
        query = parse_qs(split.query)
        if mode == "s3redir":
            handler.send(307, b"", Location=f"{handler.server.url}{handler.path}")
        elif mode == "s3deny" and hashlib.sha256(split.path.encode()).digest()[0] % 4 == 0:
            handler.send(403, DENIED)
        elif handler.command == "PUT":
            checksum = handler.headers.get("x-amz-checksum-sha256", "")
            self._there[split.path] = Stored(body, checksum)
            headers: Any = {"x-amz-checksum-sha256": checksum}
            handler.send(200, b"", ETag='"e"', **headers)
        elif "list-type" in query:
            handler.send(200, self._list(split.path, query.get("prefix", [""])[0], mode))
        elif split.path not in self._there:
            handler.send(404, MISSING)
        else:
            self._object(handler, mode, self._there[split.path])

    def _list(self, bucket: str, prefix: str, mode: str) -> bytes:
        if mode in LISTS:
            return LISTS[mode]
        start = f"{bucket.rstrip('/')}/"
        found = {path[len(start) :]: stored for path, stored in self._there.items() if path.startswith(start + prefix)}
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size></Contents>"
            for key, stored in sorted(found.items())
        )
        more = ""
        if mode.startswith("s3pages"):
            token = "same" if mode == "s3pages" else str(time.monotonic_ns())
            more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        truncated = "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{entries}</ListBucketResult>".encode()

    def _object(self, handler: Handler, mode: str, stored: Stored) -> None:
        data = stored.data
        more: Any = {"x-amz-checksum-sha256": stored.checksum}
        if mode in ("s3wrong", "s3short", "s3endless"):
            more = {}  # so that the bytes are asked for
        if mode == "s3checksum":
            more = {"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(b"another").digest()).decode()}
        if mode == "s3wrong":
            data = bytes(len(data))
        if mode == "s3endless" and handler.command == "GET":
            handler.endless()
        elif mode == "s3short" and handler.command == "GET":
            handler.send(200, data[: len(data) // 2], length=len(data) + 5000)
            handler.close_connection = True
        else:
            handler.send(200, data, **more)
