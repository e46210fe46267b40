"""Objects of S3, through boto3: listed, and read by ranges of the version that was opened."""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
from collections.abc import Iterator
from typing import Any

from hyperpod_kit.checkpoint.repository.store.s3 import boto3_client_or_none
from hyperpod_kit.errors import DataError, MissingExtra


def split_url(url: str) -> tuple[str, str]:
    """Split `s3://bucket/key` into (bucket, key). Raises DataError."""
    bucket, _, key = url[len("s3://") :].partition("/")
    if not bucket:
        raise DataError(f"{url} names no bucket", hint="s3://BUCKET/PREFIX")
    return bucket, key


def cached_s3_client() -> Any:
    """Make a client for this process. Raises MissingExtra without boto3."""
    return _client_for_process(os.getpid())


@functools.lru_cache(maxsize=1)
def _client_for_process(pid: int) -> Any:
    new_client = boto3_client_or_none()
    if new_client is None:
        raise MissingExtra("s3:// needs boto3, which is not installed", hint="pip install boto3")
    return new_client


def list_objects(prefix_url: str, pattern: str | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield (key below the prefix, size, mtime in nanoseconds) of each object. `pattern`: of whole addresses."""
    bucket, key = split_url(prefix_url)
    start = ""
    if key:
        start = key.rstrip("/") + "/"
    try:
        for page in cached_s3_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start):
            for item in page.get("Contents", ()):
                name = item["Key"]
                if name.endswith("/") or (pattern and not fnmatch.fnmatch(f"s3://{bucket}/{name}", pattern)):
                    continue
                yield name[len(start) :], int(item["Size"]), _nanoseconds(item["LastModified"])
        if key and not pattern and not key.endswith("/"):
            yield from _list_object_of_exact_key(bucket, key)
    except Exception as err:
        raise _as_os_error(err, prefix_url) from None


def _list_object_of_exact_key(bucket: str, key: str) -> Iterator[tuple[str, int, int]]:
    """List the object of exactly that name, as a source of one file, whose path below it is empty."""
    try:
        head = cached_s3_client().head_object(Bucket=bucket, Key=key)
    except Exception as err:
        if _error_code(err) in ("404", "NoSuchKey", "NotFound"):
            return
        raise
    yield "", int(head["ContentLength"]), _nanoseconds(head["LastModified"])


def _nanoseconds(when: Any) -> int:
    return int(when.timestamp()) * 1_000_000_000


class S3Object:
    """See SourceFile."""

    def __init__(self, url: str) -> None:
        self.path = url
        bucket, key = split_url(url)
        self._location = {"Bucket": bucket, "Key": key}
        try:
            head = cached_s3_client().head_object(**self._location)
        except Exception as err:
            raise _as_os_error(err, url) from None
        self.size = int(head["ContentLength"])
        self.mtime_ns = _nanoseconds(head["LastModified"])
        self.etag = head["ETag"]

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        try:
            response = cached_s3_client().get_object(
                Range=f"bytes={offset}-{end - 1}", IfMatch=self.etag, **self._location
            )
            with response["Body"] as body:
                data = bytes(body.read())
        except Exception as err:
            raise _as_os_error(err, self.path) from None
        if len(data) != end - offset:
            raise OSError(errno.EIO, f"{len(data)} of {end - offset} bytes came", self.path)
        return data

    def close(self) -> None:
        """See SourceFile."""


def _error_code(err: Exception) -> str:
    response = getattr(err, "response", None)
    if not isinstance(response, dict):
        return ""
    return str(response.get("Error", {}).get("Code", ""))


def _as_os_error(err: Exception, url: str) -> Exception:
    """Translate an error to the system's, so that objects fail like files do."""
    if isinstance(err, (DataError, OSError)):
        return err
    code = _error_code(err)
    if code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
        return FileNotFoundError(errno.ENOENT, code, url)
    if code in ("403", "AccessDenied"):
        return PermissionError(errno.EACCES, code, url)
    if code in ("412", "PreconditionFailed"):
        return OSError(errno.ESTALE, "it was written anew while it was read", url)
    return OSError(errno.EIO, f"{type(err).__name__}: {err}", url)
