"""All buckets of the rehearsal on one directory, with the faults and the request log of their endpoint."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from pathlib import Path

from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.s3.bucket import Conditions, StoredBucket
from hyperpod_rehearsal.s3.errors import S3Error, no_such_bucket
from hyperpod_rehearsal.s3.faults import Faults, RequestLog
from hyperpod_rehearsal.s3.objects import Attributes, Checksums, ObjectInfo
from hyperpod_rehearsal.s3.receive import receive_verified_body_into_blob

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class StoredBuckets:
    """Buckets under `root`; the same objects through Python here and over HTTP through the endpoint.

    One process at a time may have a store on a directory: the index is in memory.
    All methods raise S3Error as S3 would answer. Safe for threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = Faults()
        self.requests = RequestLog()
        self._lock = threading.Lock()
        by_descriptor.make_directories(root)
        self._buckets = {path.name: StoredBucket(path) for path in root.iterdir() if path.is_dir()}

    def bucket_names(self) -> list[str]:
        """The names of all buckets, sorted."""
        return sorted(self._buckets)

    def has_bucket(self, name: str) -> bool:
        """Whether the bucket exists."""
        return name in self._buckets

    def bucket(self, name: str) -> StoredBucket:
        """The bucket. Raises S3Error NoSuchBucket."""
        try:
            return self._buckets[name]
        except KeyError:
            raise no_such_bucket(name) from None

    def create_bucket(self, name: str) -> StoredBucket:
        """The bucket, made when it does not exist (S3 in us-east-1 does the same for the owner)."""
        if not BUCKET_NAME.fullmatch(name):
            raise S3Error(400, "InvalidBucketName", f"The specified bucket is not valid: {name}")
        with self._lock:
            if name not in self._buckets:
                self._buckets[name] = StoredBucket(self.root / name)
            return self._buckets[name]

    def delete_bucket(self, name: str) -> None:
        """Remove an empty bucket."""
        with self._lock:
            self.bucket(name).delete_bucket_or_raise_if_not_empty()
            del self._buckets[name]

    def put(self, bucket: str, key: str, data: bytes) -> ObjectInfo:
        """Store bytes as an object."""
        target = self.bucket(bucket)
        received = receive_verified_body_into_blob(iter([data]), target.blobs)
        return target.commit(key, (received.segment,), received.md5, Attributes(), Checksums(), Conditions())

    def get(self, bucket: str, key: str) -> bytes:
        """The bytes of an object."""
        _, ranges = self.bucket(bucket).open(key)
        with ExitStack() as stack:
            for item in ranges:
                stack.enter_context(item.file)
            return b"".join(item.file.read(item.length) for item in ranges)

    def exists(self, bucket: str, key: str) -> bool:
        """Whether the object exists; False too when the bucket does not."""
        return self.has_bucket(bucket) and self.bucket(bucket).find(key) is not None

    def list(self, bucket: str, prefix: str = "") -> list[ObjectInfo]:
        """The objects whose key starts with `prefix`, in order of their keys."""
        stored = self.bucket(bucket)
        infos = (stored.find(key) for key in stored.sorted_keys() if key.startswith(prefix))
        return [info for info in infos if info is not None]
