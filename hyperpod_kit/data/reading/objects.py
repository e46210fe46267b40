"""Objects of S3: listed, and read by ranges of the version that was opened."""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hyperpod_kit.errors import DataError
from hyperpod_kit.s3.connect import connect
from hyperpod_kit.s3.errors import S3NotConfigured, code_of, to_os_error
from hyperpod_kit.s3.objects import ObjectVersion, iter_listing_pages

_MISSING_CODES = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")


def split_url(url: str) -> tuple[str, str]:
    """Split `s3://bucket/key` into (bucket, key). Raises DataError."""
    bucket, _, key = url[len("s3://") :].partition("/")
    if not bucket:
        raise DataError(f"{url} names no bucket", hint="s3://BUCKET/PREFIX")
    return bucket, key


def _cached_client(bucket: str) -> Any:
    """Make a client for this process, and keep it. Raises DataError where no region is known."""
    return _client_for_process(bucket, os.getpid())


@functools.lru_cache(maxsize=64)
def _client_for_process(bucket: str, pid: int) -> Any:
    try:
        return connect(f"s3://{bucket}", os.environ)
    except S3NotConfigured as err:
        raise DataError(str(err), hint=err.hint) from None


def list_objects(prefix_url: str, pattern: str | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield (key below the prefix, size, mtime in nanoseconds) of each object. `pattern`: of whole addresses."""
    bucket, key = split_url(prefix_url)
    start = ""
    if key:
        start = key.rstrip("/") + "/"
    try:
        for page in iter_listing_pages(_cached_client(bucket), bucket, start):
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
        version = ObjectVersion(_cached_client(bucket), bucket, key)
    except Exception as err:
        if code_of(err) in _MISSING_CODES:
            return
        raise
    yield "", version.size, _nanoseconds(version.last_modified)


def _nanoseconds(when: datetime) -> int:
    return int(when.timestamp()) * 1_000_000_000


class S3Object:
    """See SourceFile."""

    def __init__(self, url: str) -> None:
        self.path = url
        bucket, key = split_url(url)
        try:
            self._version = ObjectVersion(_cached_client(bucket), bucket, key)
        except Exception as err:
            raise _as_os_error(err, url) from None
        self.size = self._version.size
        self.mtime_ns = _nanoseconds(self._version.last_modified)
        self.etag = self._version.etag

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        try:
            with self._version.open_range(offset, end) as body:
                data = bytes(body.read())
        except Exception as err:
            raise _as_os_error(err, self.path) from None
        if len(data) != end - offset:
            raise OSError(errno.EIO, f"{len(data)} of {end - offset} bytes came", self.path)
        return data

    def close(self) -> None:
        """See SourceFile."""


def _as_os_error(err: Exception, url: str) -> Exception:
    """Translate an error to the system's, so that objects fail like files do: what may pass is asked for again."""
    if isinstance(err, DataError):
        return err
    code = code_of(err)
    if code in _MISSING_CODES:
        return FileNotFoundError(errno.ENOENT, code, url)
    if code in ("403", "AccessDenied"):
        return PermissionError(errno.EACCES, code, url)
    if code in ("412", "PreconditionFailed"):
        return OSError(errno.ESTALE, "it was overwritten while it was read", url)
    description = f"{type(err).__name__}: {err}"
    if code:
        return OSError(errno.EIO, description, url)
    error = to_os_error(err, url)
    if error.errno == errno.EACCES:  # no credentials: a node's role may have some again
        return OSError(errno.EIO, description, url)
    return error
