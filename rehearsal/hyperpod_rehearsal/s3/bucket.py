"""One bucket: objects by key, committed atomically and conditionally."""

from __future__ import annotations

import bisect
import hashlib
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json
from hyperpod_rehearsal.s3.blobs import BlobDirectory, delete_partials_and_read_documents, write_json_document
from hyperpod_rehearsal.s3.errors import S3Error, no_such_key, precondition_failed
from hyperpod_rehearsal.s3.multipart import Uploads
from hyperpod_rehearsal.s3.objects import Attributes, Checksums, ObjectInfo, Segment


@dataclass(frozen=True)
class Conditions:
    """Conditional headers of a write. if_match: an ETag, quoted or not; if_none_match: `*` or nothing."""

    if_match: str | None = None
    if_none_match: str | None = None


@dataclass(frozen=True)
class OpenRange:
    """An open file of which `length` bytes from `offset` are to be sent."""

    file: BinaryIO
    offset: int
    length: int


class StoredBucket:
    """Objects of one bucket, indexed in memory, kept on disk. Safe for threads."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root
        self._documents = root / "objects"
        self.blobs = BlobDirectory(root / "blobs")
        self.uploads = Uploads(root / "uploads", self.blobs)
        self._lock = threading.RLock()
        self.created = _read_or_record_creation_time(root / "created.json")
        self._objects = {
            raw["key"]: dataclass_from_json(ObjectInfo, raw)
            for _, raw in delete_partials_and_read_documents(self._documents, "*/*.json")
        }
        self._keys = sorted(self._objects)
        self.blobs.delete_blobs_except(
            {segment.blob for item in self._objects.values() for segment in item.segments} | self.uploads.blob_names()
        )

    def sorted_keys(self) -> list[str]:
        """All keys in S3's order (that of their UTF-8 bytes, which is that of Python's strings)."""
        with self._lock:
            return list(self._keys)

    def find(self, key: str) -> ObjectInfo | None:
        """The object, or None."""
        return self._objects.get(key)

    def get(self, key: str) -> ObjectInfo:
        """The object. Raises S3Error NoSuchKey."""
        info = self.find(key)
        if info is None:
            raise no_such_key(key)
        return info

    def commit(
        self,
        key: str,
        segments: tuple[Segment, ...],
        etag: str,
        attributes: Attributes,
        checksums: Checksums,
        conditions: Conditions = Conditions(),
    ) -> ObjectInfo:
        """Make the segments the object `key`, all or nothing.

        Raises S3Error 412 or 404 when a condition does not hold; the segments stay the caller's then.
        """
        info = ObjectInfo(
            key, sum(segment.size for segment in segments), etag, time.time(), segments, attributes, checksums
        )
        with self._lock:
            current = self._objects.get(key)
            require_write_conditions(conditions, current)
            write_json_document(self._document_path(key), dataclass_to_json(info))
            if current is None:
                bisect.insort(self._keys, key)
            self._objects[key] = info
        if current is not None:
            self.blobs.delete_blobs(segment.blob for segment in current.segments)
        return info

    def delete(self, key: str, conditions: Conditions = Conditions()) -> None:
        """Remove the object; one that is not there is no error, as in S3."""
        with self._lock:
            current = self._objects.get(key)
            require_write_conditions(conditions, current)
            if current is None:
                return
            by_descriptor.unlink(self._document_path(key), missing_ok=True)
            del self._objects[key]
            del self._keys[bisect.bisect_left(self._keys, key)]
        self.blobs.delete_blobs(segment.blob for segment in current.segments)

    def open(self, key: str, first: int = 0, last: int | None = None) -> tuple[ObjectInfo, list[OpenRange]]:
        """The object and open files for its bytes `first`..`last` (inclusive); the caller closes them.

        Files stay readable when the object is replaced or deleted meanwhile.
        """
        with self._lock:
            info = self.get(key)
            if last is None:
                end = info.size
            else:
                end = min(last + 1, info.size)
            ranges, start = [], 0
            for segment in info.segments:
                low, high = max(first - start, 0), min(end - start, segment.size)
                if low < high:
                    file = open(self.blobs.path(segment.blob), "rb", buffering=0)  # noqa: SIM115
                    ranges.append(OpenRange(file, low, high - low))
                start += segment.size
            return info, ranges

    def link_segments_from(self, source: StoredBucket, key: str) -> tuple[ObjectInfo, tuple[Segment, ...]]:
        """Hard-link the bytes of object `key` of `source` into this bucket; returns it and the new segments."""
        with source._lock:
            info = source.get(key)
            return info, tuple(self.blobs.hard_link_segment(source.blobs, segment) for segment in info.segments)

    def delete_bucket_or_raise_if_not_empty(self) -> None:
        """Delete the bucket. Raises S3Error BucketNotEmpty."""
        with self._lock:
            if self._keys:
                raise S3Error(409, "BucketNotEmpty", "The bucket you tried to delete is not empty")
            by_descriptor.remove_tree(self._root, ignore_errors=True)

    def _document_path(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self._documents / digest[:2] / f"{digest}.json"


def _read_or_record_creation_time(path: Path) -> float:
    """Return when a bucket was created, in Unix seconds; records the present time when none is recorded."""
    try:
        return float(json.loads(path.read_text()))
    except (OSError, ValueError):
        now = time.time()
        write_json_document(path, now)
        return now


def require_write_conditions(conditions: Conditions, current: ObjectInfo | None) -> None:
    """Raise S3Error unless the conditions of a write hold for the present object."""
    if conditions.if_none_match is not None:
        if conditions.if_none_match != "*":
            raise S3Error(
                501,
                "NotImplemented",
                "A header you provided implies functionality that is not "
                "implemented: If-None-Match on a write takes * only",
            )
        if current is not None:
            raise precondition_failed("If-None-Match")
    if conditions.if_match is not None:
        if current is None:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist: If-Match")
        if conditions.if_match.strip('"') not in ("*", current.etag):
            raise precondition_failed("If-Match")
