"""A prefix of an S3 bucket.

New objects are made with `If-None-Match: *`, so two writers of one name cannot both succeed; every body and every part
carries a CRC-32 that the service checks before it stores anything.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Any, Dict, Iterator, List, Sequence

from hyperpod_kit.checkpoint.repository.store.base import (
    SMALL,
    Capabilities,
    NotAnObject,
    StoreReader,
    StoreWriter,
    Unsupported,
    require_name_below_root,
    sort_names_between,
)
from hyperpod_kit.checkpoint.repository.store.s3_upload import S3Writer
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.s3 import connect as s3_connect
from hyperpod_kit.s3.errors import S3NotConfigured, code_of, to_os_error, was_retried
from hyperpod_kit.s3.objects import ObjectVersion, iter_listing_pages
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.files import too_large_error

_CONFLICT_TRIES = 6
_CONFLICT_PAUSES = BackOff(0.05, 0.8)
_READ_TRIES = 3

_DELETED_AT_ONCE = 1000
"""Names in one DeleteObjects, which takes no more."""


class S3Reader:
    """Ranged GETs of the version of the object that was there when it was opened."""

    align = 1

    def __init__(self, client: Any, where: Dict[str, str], url: str) -> None:
        self._url = url
        try:
            self._object = ObjectVersion(client, where["Bucket"], where["Key"])
        except Exception as err:
            raise to_os_error(err, url) from None
        self.size = self._object.size

    def read_into(self, view: memoryview, offset: int) -> int:
        """See StoreReader."""
        end = min(offset + len(view), self.size)
        if end <= offset:
            return 0
        done = 0
        try:
            with self._object.open_range(offset, end) as body:
                while done < end - offset:
                    part = body.read(min(1 << 20, end - offset - done))
                    if not part:
                        break
                    view[done : done + len(part)] = part
                    done += len(part)
        except Exception as err:
            # A connection that broke in the middle: the caller asks for the rest again.
            if not done:
                raise to_os_error(err, self._url) from None
        return done

    def close(self) -> None:
        """See StoreReader."""


class S3Store:
    """See Store. Objects are named `<prefix>/<name>`."""

    def __init__(self, url: str, client: Any) -> None:
        self.url = url.rstrip("/")
        self._bucket, _, prefix = self.url[len("s3://") :].partition("/")
        if prefix:
            self._prefix = prefix + "/"
        else:
            self._prefix = ""
        self._client = client
        self._delete = True

    @property
    def capabilities(self) -> Capabilities:
        """`delete` until it was refused."""
        return Capabilities(delete=self._delete, overwrite=True, direct=False, local=False, parallel_write=True)

    def _bucket_and_key(self, name: str) -> Dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + require_name_below_root(name)}

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store. One call for each thousand names."""
        start = self._prefix + (require_name_below_root(prefix) + "/" if prefix else "")
        names: List[str] = []
        for page in self._iter_listing_pages(start, after):
            names += [item["Key"][len(start) :] for item in page.get("Contents", ())]
            names += [item["Prefix"][len(start) :] for item in page.get("CommonPrefixes", ())]
            if until and max(names, default="") > until:
                break
        # An object that is named like the directory itself, "", is what some consoles make.
        return sort_names_between(names, after, until)

    def sizes(self, prefix: str) -> Dict[str, int]:
        """See Store. One call for each thousand names."""
        start = self._prefix + require_name_below_root(prefix) + "/"
        items = (item for page in self._iter_listing_pages(start) for item in page.get("Contents", ()))
        return {item["Key"][len(start) :]: int(item["Size"]) for item in items if item["Key"] != start}

    def _iter_listing_pages(self, start: str, after: str = "") -> Iterator[Dict[str, Any]]:
        """Yield the pages of the listing of names that begin with `start`, up to the next "/" in them."""
        start_after = ""
        if after:
            start_after = start + after
        try:
            yield from iter_listing_pages(self._client, self._bucket, start, delimiter="/", start_after=start_after)
        except Exception as err:
            raise to_os_error(err, f"s3://{self._bucket}/{start}") from None

    def exists(self, name: str) -> bool:
        """See Store."""
        try:
            self._client.head_object(**self._bucket_and_key(name))
            return True
        except Exception as err:
            if code_of(err) in ("404", "NoSuchKey", "NotFound"):
                return False
            raise to_os_error(err, f"{self.url}/{name}") from None

    def read(self, name: str, most: int = SMALL) -> bytes:
        """See Store."""
        tries = _READ_TRIES
        while True:
            tries -= 1
            try:
                response = self._client.get_object(ChecksumMode="ENABLED", **self._bucket_and_key(name))
                with response["Body"] as body:
                    if response["ContentLength"] > most:
                        raise too_large_error(name, response["ContentLength"], most, NotAnObject)
                    return bytes(body.read())
            except NotAnObject:
                raise
            except Exception as err:
                # The client asks again for an answer that did not come, not for a body that broke off.
                if code_of(err) or not tries:
                    raise to_os_error(err, f"{self.url}/{name}") from None

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        return S3Reader(self._client, self._bucket_and_key(name), f"{self.url}/{name}")

    def drop_cached_pages(self, name: str) -> None:
        """See Store: a GET asks the service."""

    def link_target(self, name: str) -> None:
        """See Store: never."""

    def create(self, name: str, data: bytes) -> None:
        """See Store. 409 means that another conditional write was under way: it is asked again who won."""
        for try_number in range(_CONFLICT_TRIES):
            try:
                self._client.put_object(
                    Body=data, IfNoneMatch="*", ChecksumAlgorithm="CRC32", **self._bucket_and_key(name)
                )
                return
            except Exception as err:
                if code_of(err) == "ConditionalRequestConflict" and try_number + 1 < _CONFLICT_TRIES:
                    time.sleep(_CONFLICT_PAUSES.pause_seconds(try_number + 1))
                    continue
                # The answer to a first try may have been lost; then the object that is in the way is ours.
                lost = code_of(err) == "PreconditionFailed" and was_retried(err)
                if lost and self.read(name, max(SMALL, len(data))) == data:
                    return
                raise to_os_error(err, f"{self.url}/{name}", "written") from None

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store: what other writers do meanwhile shows in `finish`."""
        if self.exists(name):
            raise FileExistsError(errno.EEXIST, "the object is there", f"{self.url}/{name}")
        return S3Writer(self._client, self._bucket_and_key(name), f"{self.url}/{name}", size)

    def sync(self, folder: str) -> None:
        """See Store: an object is durable with its name."""

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store."""
        try:
            self._client.put_object(Body=data, ChecksumAlgorithm="CRC32", **self._bucket_and_key(name))
        except Exception as err:
            raise to_os_error(err, f"{self.url}/{name}", "written") from None

    def delete(self, name: str) -> None:
        """See Store. The first refusal is remembered."""
        if name.endswith("/"):
            return
        if not self._delete:
            raise Unsupported(f"{self.url} may not be deleted from")
        try:
            self._client.delete_object(**self._bucket_and_key(name))
        except Exception as err:
            if code_of(err) in ("AccessDenied", "403", "MethodNotAllowed"):
                self._delete = False
                raise Unsupported(f"{self.url}/{name} may not be deleted: {code_of(err)}") from None
            raise to_os_error(err, f"{self.url}/{name}", "deleted") from None

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store. One call for each thousand names; what it could not delete is asked for once more, by itself."""
        for at in range(0, len(names), _DELETED_AT_ONCE):
            for name in self._bulk_delete_returning_failures(names[at : at + _DELETED_AT_ONCE]):
                self.delete(name)

    def _bulk_delete_returning_failures(self, names: Sequence[str]) -> List[str]:
        """Delete these objects in one call where that is possible, and return the names that are still to be
        deleted."""
        keys = {self._bucket_and_key(name)["Key"]: name for name in names}
        # One call less for a single one; and XML has no words for control characters, which a prefix may have.
        if len(keys) == 1 or not self._delete or not all(key.isprintable() for key in keys):
            return list(keys.values())
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            response = self._client.delete_objects(Bucket=self._bucket, Delete=request, ChecksumAlgorithm="CRC32")
        except Exception:
            # Refused, or a service without that call: one by one it says what is wrong, if anything is.
            return list(keys.values())
        return [keys[error["Key"]] for error in response.get("Errors", ()) if error.get("Key") in keys]


def connect(url: str) -> S3Store:
    """Return the store of `s3://bucket/prefix`.

    Raise CheckpointError when no bucket is named or no region is known.
    """
    if not url[len("s3://") :].partition("/")[0]:
        raise CheckpointError(f"{url} names no bucket", hint="s3://BUCKET/PREFIX")
    try:
        return S3Store(url, s3_connect.connect(url, os.environ))
    except S3NotConfigured as err:
        raise CheckpointError(str(err), hint=err.hint) from None
