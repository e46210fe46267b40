"""The few S3 calls that a bundle needs; errors are ours."""

from __future__ import annotations

import base64
import hashlib
from typing import Optional

from hyperpod_kit.aws.errors import NOT_FOUND, translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError

PAGE = 1000
"""Keys in one answer; S3 gives no more."""


class Bucket:
    """One bucket, used by up to `connections` threads. Every method raises AwsError or Unreachable."""

    def __init__(self, name: str, region: Optional[str] = None, *, connections: int = 10) -> None:
        self.name = name
        self._client = client("s3", region, connections=connections)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Key below `prefix` -> bytes, all pages."""
        with translated("ListObjectsV2", f"s3://{self.name}/{prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
            )
            return {entry["Key"][len(prefix) :]: entry["Size"] for page in pages for entry in page.get("Contents", [])}

    def put(self, key: str, data: bytes) -> None:
        """Store an object; S3 itself refuses bytes that do not have the checksum that we send."""
        with translated("PutObject", f"s3://{self.name}/{key}"):
            self._client.put_object(
                Bucket=self.name,
                Key=key,
                Body=data,
                ChecksumSHA256=base64.b64encode(hashlib.sha256(data).digest()).decode(),
            )

    def get(self, key: str) -> Optional[bytes]:
        """The bytes of an object, None when there is no such object."""
        try:
            with translated("GetObject", f"s3://{self.name}/{key}"):
                return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise

    def sha256(self, key: str) -> Optional[str]:
        """Hex SHA-256 of an object, from the stored checksum or else from its bytes.

        None when there is no such object.
        """
        try:
            with translated("HeadObject", f"s3://{self.name}/{key}"):
                head = self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
            stored = head.get("ChecksumSHA256")
            # "…-3" is the checksum of the checksums of three parts, which says nothing about the whole.
            if stored and "-" not in stored:
                return base64.b64decode(stored).hex()
            with translated("GetObject", f"s3://{self.name}/{key}"):
                return hashlib.sha256(self._client.get_object(Bucket=self.name, Key=key)["Body"].read()).hexdigest()
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise
