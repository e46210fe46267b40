"""The few S3 calls that a bundle needs; errors are ours. Calls that S3 throttles are repeated here."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Callable, Optional, TypeVar

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import with_retries
from hyperpod_kit.aws.errors import NOT_FOUND, translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError

PAGE = 1000
"""Keys in one answer; S3 gives no more."""
LARGEST = 256 << 20
"""Bytes of an object of a bundle; packages of mount clients are the largest."""
SMALL = responses.LARGEST
"""Bytes of a file that is read into memory."""
SECONDS = 110.0
"""That it may take."""
Response = TypeVar("Response")


def _small(body: Any, what: str) -> bytes:
    return responses.read_all(body, what, largest=SMALL, seconds=SECONDS)


def _sha256(body: Any, what: str) -> str:
    digest = hashlib.sha256()
    responses.stream_to(body, what, digest.update, largest=LARGEST, seconds=SECONDS)
    return digest.hexdigest()


class Bucket:
    """One bucket, used by up to `connections` threads. Every method raises AwsError or Unreachable."""

    def __init__(self, name: str, region: Optional[str] = None, *, connections: int = 10) -> None:
        self.name = name
        self._client = client("s3", region, connections=connections)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Key below `prefix` -> bytes, all pages."""

        def listed() -> dict[str, int]:
            pages = responses.paginate(
                self._client, "list_objects_v2", Bucket=self.name, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
            )
            return {entry["Key"][len(prefix) :]: entry["Size"] for page in pages for entry in page.get("Contents", [])}

        return self._request("ListObjectsV2", prefix, listed)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; S3 itself refuses bytes that do not have the checksum that we send."""
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        self._request(
            "PutObject",
            key,
            lambda: self._client.put_object(Bucket=self.name, Key=key, Body=data, ChecksumSHA256=checksum),
        )

    def get(self, key: str) -> Optional[bytes]:
        """The bytes of a small file, None when there is no such object."""
        return self._or_none(lambda: self._read(key, _small))

    def sha256(self, key: str) -> Optional[str]:
        """Hex SHA-256 of an object, from the stored checksum or else from its bytes.

        None when there is no such object.
        """
        return self._or_none(lambda: self._digest(key))

    def _digest(self, key: str) -> str:
        head: dict[str, Any] = self._request(
            "HeadObject",
            key,
            lambda: dict(self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")),
        )
        stored = head.get("ChecksumSHA256")
        # "…-3" is the checksum of the checksums of three parts, which says nothing about the whole.
        if stored and "-" not in stored:
            return base64.b64decode(stored).hex()
        return self._read(key, _sha256)

    def _read(self, key: str, reader: Callable[[Any, str], Response]) -> Response:
        """Return what `reader` makes of an object's body."""
        what = f"GetObject s3://{self.name}/{key}"
        return self._request(
            "GetObject", key, lambda: reader(self._client.get_object(Bucket=self.name, Key=key)["Body"], what)
        )

    def _request(self, operation: str, key: str, call: Callable[[], Response]) -> Response:
        def once() -> Response:
            with translated(operation, f"s3://{self.name}/{key}"):
                return call()

        return with_retries(once)

    def _or_none(self, fetch: Callable[[], Response]) -> Optional[Response]:
        try:
            return fetch()
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise
