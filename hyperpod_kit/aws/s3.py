"""The few S3 calls that a bundle needs; errors are ours. Calls that S3 throttles are repeated here."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Callable, Optional, TypeVar

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import NOT_FOUND, translate_aws_errors
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
CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409")
"""How S3 answers a conditional write that another write came before, or whose object was deleted."""
Response = TypeVar("Response")


def _read_small_body(body: Any, what: str) -> bytes:
    return responses.read_bounded_body(body, what, largest=SMALL, seconds=SECONDS)


def _body_sha256(body: Any, what: str) -> str:
    digest = hashlib.sha256()
    responses.stream_bounded_body(body, what, digest.update, largest=LARGEST, seconds=SECONDS)
    return digest.hexdigest()


class Bucket:
    """One bucket, used by up to `connections` threads. Every method raises AwsError or Unreachable."""

    def __init__(self, name: str, region: Optional[str] = None, *, connections: int = 10) -> None:
        self.name = name
        self._client = client("s3", region, connections=connections)

    def sizes_by_relative_key(self, prefix: str) -> dict[str, int]:
        """Return key -> bytes of all objects below `prefix`, all pages; the keys are without the prefix."""

        def listed() -> dict[str, int]:
            pages = responses.paginate(
                self._client, "list_objects_v2", Bucket=self.name, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
            )
            return {entry["Key"][len(prefix) :]: entry["Size"] for page in pages for entry in page.get("Contents", [])}

        return self._call_with_retries("ListObjectsV2", prefix, listed)

    def put(self, key: str, data: bytes) -> Optional[str]:
        """Store an object; S3 itself refuses bytes that do not have the checksum that we send.

        Returns the hex SHA-256 that S3 answers with, None where an endpoint answers with none.
        """
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        response: dict[str, Any] = self._call_with_retries(
            "PutObject",
            key,
            lambda: dict(self._client.put_object(Bucket=self.name, Key=key, Body=data, ChecksumSHA256=checksum)),
        )
        stored = response.get("ChecksumSHA256")
        if not stored:
            return None
        return base64.b64decode(stored).hex()

    def put_if_unchanged(self, key: str, data: bytes, etag: Optional[str]) -> Optional[str]:
        """Store an object where the stored one still has this ETag, or where there is none and `etag` is None.

        Returns the new ETag, None when another version is stored. S3 decides: of two writers, one gets None
        (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
        """
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        condition = {"IfNoneMatch": "*"}
        if etag is not None:
            condition = {"IfMatch": etag}

        def put() -> str:
            response = self._client.put_object(
                Bucket=self.name, Key=key, Body=data, ChecksumSHA256=checksum, **condition
            )
            return str(response["ETag"])

        try:
            return self._call_with_retries("PutObject", key, put)
        except AwsError as err:
            if err.code not in CHANGED:
                raise
        # A request that was repeated because its answer was lost meets its own bytes.
        stored = self.get_with_etag(key)
        if stored is not None and stored[0] == data:
            return stored[1]
        return None

    def get(self, key: str) -> Optional[bytes]:
        """Return the bytes of a small object, None when there is no such object."""
        return self._none_if_not_found(lambda: self._read_object(key, _read_small_body))

    def get_with_etag(self, key: str) -> Optional[tuple[bytes, str]]:
        """Return the bytes of a small object and its ETag, None when there is no such object."""

        def read() -> tuple[bytes, str]:
            response = self._client.get_object(Bucket=self.name, Key=key)
            return _read_small_body(response["Body"], f"GetObject s3://{self.name}/{key}"), str(response["ETag"])

        return self._none_if_not_found(lambda: self._call_with_retries("GetObject", key, read))

    def sha256(self, key: str) -> Optional[str]:
        """Hex SHA-256 of an object, from the stored checksum or else from its bytes.

        None when there is no such object.
        """
        return self._none_if_not_found(lambda: self._stored_or_computed_sha256(key))

    def _stored_or_computed_sha256(self, key: str) -> str:
        head: dict[str, Any] = self._call_with_retries(
            "HeadObject",
            key,
            lambda: dict(self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")),
        )
        stored = head.get("ChecksumSHA256")
        # "…-3" is the checksum of the checksums of three parts, which says nothing about the whole.
        if stored and "-" not in stored:
            return base64.b64decode(stored).hex()
        return self._read_object(key, _body_sha256)

    def _read_object(self, key: str, reader: Callable[[Any, str], Response]) -> Response:
        """Return what `reader` makes of an object's body."""
        what = f"GetObject s3://{self.name}/{key}"
        return self._call_with_retries(
            "GetObject", key, lambda: reader(self._client.get_object(Bucket=self.name, Key=key)["Body"], what)
        )

    def _call_with_retries(self, operation: str, key: str, call: Callable[[], Response]) -> Response:
        def once() -> Response:
            with translate_aws_errors(operation, f"s3://{self.name}/{key}"):
                return call()

        return retry_while_throttled(once)

    def _none_if_not_found(self, fetch: Callable[[], Response]) -> Optional[Response]:
        try:
            return fetch()
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise
