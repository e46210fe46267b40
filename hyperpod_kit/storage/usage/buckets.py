"""A prefix of a bucket: objects, and what is paid for beside them, old versions and uploads that nobody finished."""

from __future__ import annotations

import json
from bisect import bisect
from collections import defaultdict
from typing import Any, Callable, Iterator, NamedTuple

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.scan import Ages

OLD, MARKERS, UNFINISHED = "old versions", "delete markers", "unfinished uploads"
PAGE = 1000
"""Versions in one answer; S3 gives no more."""


class BucketPrefix(NamedTuple):
    """`s3://bucket/prefix`; `prefix` ends with a slash or is empty."""

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"s3://{self.bucket}/{self.prefix}"


def parse_url(url: str) -> BucketPrefix:
    """Parse `s3://bucket/prefix`. Raises UsageError."""
    bucket, _, prefix = url[len("s3://") :].partition("/")
    if not url.startswith("s3://") or len(bucket) < 3:
        raise UsageError(f"{url}: expected s3://BUCKET or s3://BUCKET/PREFIX")
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    return BucketPrefix(bucket, prefix)


def count_prefix_into_ledger(
    prefix: BucketPrefix, depth: int, ledger: UsageLedger, progress: Callable[[int], None]
) -> None:
    """Count everything below the prefix, a page of 1,000 at a time; a killed count goes on at its page.

    Raises AwsError, Unreachable.
    """
    s3 = client("s3", None)
    if ledger.read_note("versions") != "done":
        for page, marker in _list_version_pages(s3, prefix, json.loads(ledger.read_note("versions") or "{}")):
            kinds: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for version in page.get("Versions", []):
                kind = "" if version["IsLatest"] else OLD
                kinds[kind].append((version["Key"], version["Size"]))
            kinds[MARKERS] = [(version["Key"], 0) for version in page.get("DeleteMarkers", [])]
            ledger.add_ages(_sum_by_age(page.get("Versions", []), ledger.started_at))
            for kind, objects in kinds.items():
                ledger.add_sums(kind, _sum_by_counted_path(prefix, depth, objects))
            ledger.store_note("versions", json.dumps(marker) if marker else "done")
            ledger.commit()
            progress(ledger.count_entries())
    if ledger.read_note("uploads") != "done":
        unfinished = [
            (key, _upload_size(s3, prefix, key, upload)) for key, upload in _list_unfinished_uploads(s3, prefix)
        ]
        ledger.add_sums(UNFINISHED, _sum_by_counted_path(prefix, depth, unfinished))
        ledger.store_note("uploads", "done")
        ledger.commit()


def _list_version_pages(
    s3: Any, prefix: BucketPrefix, marker: dict[str, str]
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield (page, where the next one begins: nothing after the last)."""
    while True:

        def list_page(at: dict[str, str] = marker) -> dict[str, Any]:
            with translate_aws_errors("ListObjectVersions", prefix.url):
                return dict(s3.list_object_versions(Bucket=prefix.bucket, Prefix=prefix.prefix, MaxKeys=PAGE, **at))

        page = retry_while_throttled(list_page)
        marker = {}
        if page.get("IsTruncated"):
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextVersionIdMarker"):
                marker["VersionIdMarker"] = page["NextVersionIdMarker"]
        yield page, marker
        if not marker:
            return


def _sum_by_age(versions: list[dict[str, Any]], now: float) -> list[tuple[str, int, int, int]]:
    """Compute ages by when objects were put: S3 does not say when one was read."""
    ages = Ages(now)
    for version in versions:
        if version["IsLatest"]:
            age = ages.written[bisect(ages.bounds, version["LastModified"].timestamp())]
            age[0] += 1
            age[1] += version["Size"]
    return [("written", age, count, size) for age, (count, size) in enumerate(ages.written) if count]


def _list_unfinished_uploads(s3: Any, prefix: BucketPrefix) -> list[tuple[str, str]]:
    with translate_aws_errors("ListMultipartUploads", prefix.url):
        pages = responses.paginate(s3, "list_multipart_uploads", Bucket=prefix.bucket, Prefix=prefix.prefix)
        return [(upload["Key"], upload["UploadId"]) for page in pages for upload in page.get("Uploads", [])]


def _upload_size(s3: Any, prefix: BucketPrefix, key: str, upload: str) -> int:
    with translate_aws_errors("ListParts", f"s3://{prefix.bucket}/{key}"):
        pages = responses.paginate(s3, "list_parts", Bucket=prefix.bucket, Key=key, UploadId=upload)
        return sum(part["Size"] for page in pages for part in page.get("Parts", []))


def _sum_by_counted_path(
    prefix: BucketPrefix, depth: int, objects: list[tuple[str, int]]
) -> list[tuple[str, str, int, int, int, int, int]]:
    sums: dict[str, list[int]] = {}
    for key, size in objects:
        row = sums.setdefault(counted_path(prefix, key, depth), [0, 0])
        row[0] += 1
        row[1] += size
    return [(counted_path, "", -1, -1, count, size, size) for counted_path, (count, size) in sums.items()]


def counted_path(prefix: BucketPrefix, key: str, depth: int) -> str:
    """Return the prefix that a key is counted for, of `depth` levels at most below the one that is counted."""
    levels = key[len(prefix.prefix) :].split("/")[:-1][:depth]
    return "/".join([prefix.url.rstrip("/"), *levels])
