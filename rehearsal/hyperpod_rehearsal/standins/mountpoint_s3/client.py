"""An S3 client: pooled connections, signatures, retries."""

from __future__ import annotations

import http.client
import queue
import re
import socket
import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Type
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import EMPTY_SHA256, UNSIGNED, AccessKey, sign_request_headers

TRIES = 6
"""Attempts of a request; with the pauses between them about 3 s of outage are bridged."""
TIMEOUT = 30.0


class S3Failure(Exception):
    """S3 answered with an error, or not at all (status 0)."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}" if status else code)
        self.status = status
        self.code = code


class ObjectHead(NamedTuple):
    """An object as S3 describes it. modified: Unix seconds."""

    size: int
    modified: float
    etag: str


class Listing(NamedTuple):
    """A page of a listing: objects by key, common prefixes, and the token of the next page."""

    objects: List[Tuple[str, ObjectHead]]
    prefixes: List[str]
    token: Optional[str]


class S3Client:
    """One bucket, path style. Safe for threads."""

    def __init__(self, endpoint: str, region: str, bucket: str, credentials: Optional[AccessKey]) -> None:
        self._url = urlsplit(endpoint)
        self._region = region
        self._bucket = bucket
        self._credentials = credentials
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()

    def send_with_retries(
        self,
        method: str,
        key: str = "",
        query: Sequence[Tuple[str, str]] = (),
        body: bytes = b"",
        headers: Optional[Dict[str, str]] = None,
        tries: int = TRIES,
    ) -> Tuple[http.client.HTTPResponse, bytes]:
        """The response and its body. Raises S3Failure once the tries are used up, or at once for a 3xx or 4xx."""
        path = f"/{self._bucket}"
        if key:
            path += f"/{quote(key.encode('utf-8', 'surrogateescape'), safe='/-_.~')}"
        encoded = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value.encode('utf-8', 'surrogateescape'), safe='-_.~')}"
            for name, value in sorted(query)
        )
        failure = S3Failure(0, "no attempt was made")
        for attempt in range(tries):
            if attempt:
                time.sleep(min(0.1 * 2 ** (attempt - 1), 1.6))
            try:
                response, data = self._send_once(method, path, encoded, body, headers or {})
            except (OSError, http.client.HTTPException) as err:
                failure = S3Failure(0, f"{type(err).__name__}: {err}")
                continue
            if response.status < 300:
                return response, data
            code = response.reason
            match = re.search(rb"<Code>([^<]*)", data)
            if match:
                code = match[1].decode()
            failure = S3Failure(response.status, code)
            if response.status < 500:
                raise failure
        raise failure

    def _send_once(
        self, method: str, path: str, query: str, body: bytes, extra: Dict[str, str]
    ) -> Tuple[http.client.HTTPResponse, bytes]:
        payload = EMPTY_SHA256
        if body:
            payload = UNSIGNED
        headers = {"host": self._url.netloc, "x-amz-content-sha256": payload, **extra}
        if method in ("PUT", "POST"):
            headers["content-length"] = str(len(body))
        if self._credentials is not None:
            headers = sign_request_headers(self._credentials, self._region, method, path, query, headers)
        target = path
        if query:
            target = f"{path}?{query}"
        while True:
            connection, used = self._connect_or_reuse()
            try:
                connection.request(method, target, body=body or None, headers=headers)
                response = connection.getresponse()
                data = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if used:
                    continue  # the server had closed an idle connection; a fresh one decides
                raise
            if response.will_close:
                connection.close()
            else:
                self._idle.put(connection)
            return response, data

    def _connect_or_reuse(self) -> Tuple[http.client.HTTPConnection, bool]:
        try:
            return self._idle.get_nowait(), True
        except queue.Empty:
            pass
        kind: Type[http.client.HTTPConnection] = http.client.HTTPConnection
        if self._url.scheme == "https":
            kind = http.client.HTTPSConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, False

    def head(self, key: str) -> Optional[ObjectHead]:
        """The object, or None."""
        try:
            response, _ = self.send_with_retries("HEAD", key)
        except S3Failure as err:
            if err.status == 404:
                return None
            raise
        modified = response.getheader("last-modified")
        return ObjectHead(
            int(response.getheader("content-length") or 0),
            parsedate_to_datetime(modified).timestamp() if modified else 0.0,
            response.getheader("etag") or "",
        )

    def list_page(
        self, prefix: str, *, delimiter: str = "/", limit: int = 1000, token: Optional[str] = None
    ) -> Listing:
        """A page of the keys that start with `prefix`."""
        query = [("list-type", "2"), ("prefix", prefix), ("max-keys", str(limit))]
        if delimiter:
            query.append(("delimiter", delimiter))
        if token:
            query.append(("continuation-token", token))
        _, data = self.send_with_retries("GET", query=query)
        root = ElementTree.fromstring(data)
        space = ""
        if root.tag.startswith("{"):
            space = root.tag[: root.tag.index("}") + 1]

        def text(element: ElementTree.Element, name: str) -> str:
            return element.findtext(space + name) or ""

        objects = [
            (
                text(item, "Key"),
                ObjectHead(int(text(item, "Size")), _parse_timestamp(text(item, "LastModified")), text(item, "ETag")),
            )
            for item in root.iter(f"{space}Contents")
        ]
        prefixes = [text(item, "Prefix") for item in root.iter(f"{space}CommonPrefixes")]
        return Listing(objects, prefixes, root.findtext(f"{space}NextContinuationToken"))

    def get(self, key: str, first: int, last: int, etag: str) -> bytes:
        """Bytes `first`..`last` of that version of the object. Raises S3Failure 412 when it is another now."""
        _, data = self.send_with_retries("GET", key, headers={"range": f"bytes={first}-{last}", "if-match": etag})
        return data

    def put(self, key: str, body: bytes) -> str:
        """Store a small object whole; returns its ETag."""
        response, _ = self.send_with_retries("PUT", key, body=body)
        return response.getheader("etag") or ""

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.send_with_retries("DELETE", key)

    def begin_upload(self, key: str) -> str:
        """Start a multipart upload and return its id."""
        _, data = self.send_with_retries("POST", key, [("uploads", "")])
        return _first_element_text(data, b"UploadId")

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Upload a part and return its ETag."""
        response, _ = self.send_with_retries("PUT", key, [("partNumber", str(number)), ("uploadId", upload)], body)
        return response.getheader("etag") or ""

    def complete_upload(self, key: str, upload: str, etags: Sequence[str]) -> str:
        """Make the parts an object; returns its ETag."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in enumerate(etags, 1)
        )
        _, data = self.send_with_retries(
            "POST", key, [("uploadId", upload)], f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        )
        return _first_element_text(data, b"ETag").replace("&quot;", '"').replace("&#34;", '"')

    def abort_upload(self, key: str, upload: str) -> None:
        """Throw an upload away, in one attempt."""
        self.send_with_retries("DELETE", key, [("uploadId", upload)], tries=1)


def _first_element_text(data: bytes, name: bytes) -> str:
    match = re.search(b"<" + name + b">([^<]+)", data)
    if match is None:
        raise S3Failure(500, f"no {name.decode()} in the answer")  # S3 may answer 200 with an error inside
    return match[1].decode()


def _parse_timestamp(text: str) -> float:
    return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
