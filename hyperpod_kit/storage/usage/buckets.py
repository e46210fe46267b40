"""A prefix of a bucket: objects, and what is paid for beside them, old versions and uploads that nobody finished."""

from __future__ import annotations

import json
from bisect import bisect
from collections import defaultdict
from typing import Any, Callable, Iterator, NamedTuple

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import with_retries
from hyperpod_kit.aws.errors import translated
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
        """As a person writes it."""
        return f"s3://{self.bucket}/{self.prefix}"


def parse(url: str) -> BucketPrefix:
    """Raises UsageError."""
    bucket, _, prefix = url[len("s3://") :].partition("/")
    if not url.startswith("s3://") or len(bucket) < 3:
        raise UsageError(f"{url}: expected s3://BUCKET or s3://BUCKET/PREFIX")
    return BucketPrefix(bucket, prefix + "/" if prefix and not prefix.endswith("/") else prefix)


def count(where: BucketPrefix, depth: int, ledger: UsageLedger, progress: Callable[[int], None]) -> None:
    """Count everything below the prefix, a page of 1,000 at a time; a killed count goes on at its page.

    Raises AwsError, Unreachable.
    """
    s3 = client("s3", None)
    if ledger.noted("versions") != "done":
        for page, marker in _pages(s3, where, json.loads(ledger.noted("versions") or "{}")):
            kinds: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for one in page.get("Versions", []):
                kinds["" if one["IsLatest"] else OLD].append((one["Key"], one["Size"]))
            kinds[MARKERS] = [(one["Key"], 0) for one in page.get("DeleteMarkers", [])]
            ledger.add_ages(_ages(page.get("Versions", []), ledger.begun))
            for kind, found in kinds.items():
                ledger.add(kind, _rows(where, depth, found))
            ledger.note("versions", json.dumps(marker) if marker else "done")
            ledger.commit()
            progress(ledger.counted())
    if ledger.noted("uploads") != "done":
        unfinished = [(key, _parts(s3, where, key, upload)) for key, upload in _uploads(s3, where)]
        ledger.add(UNFINISHED, _rows(where, depth, unfinished))
        ledger.note("uploads", "done")
        ledger.commit()


def _pages(s3: Any, where: BucketPrefix, marker: dict[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """(page, where the next one begins: nothing after the last)."""
    while True:

        def once(at: dict[str, str] = marker) -> dict[str, Any]:
            with translated("ListObjectVersions", where.url):
                return dict(s3.list_object_versions(Bucket=where.bucket, Prefix=where.prefix, MaxKeys=PAGE, **at))

        page = with_retries(once)
        marker = {}
        if page.get("IsTruncated"):
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextVersionIdMarker"):
                marker["VersionIdMarker"] = page["NextVersionIdMarker"]
        yield page, marker
        if not marker:
            return


def _ages(versions: list[dict[str, Any]], now: float) -> list[tuple[str, int, int, int]]:
    """By when they were put: S3 does not say when an object was read."""
    ages = Ages(now)
    for one in versions:
        if one["IsLatest"]:
            age = ages.written[bisect(ages.bounds, one["LastModified"].timestamp())]
            age[0] += 1
            age[1] += one["Size"]
    return [("written", age, count, size) for age, (count, size) in enumerate(ages.written) if count]


def _uploads(s3: Any, where: BucketPrefix) -> list[tuple[str, str]]:
    with translated("ListMultipartUploads", where.url):
        pages = responses.paginate(s3, "list_multipart_uploads", Bucket=where.bucket, Prefix=where.prefix)
        return [(one["Key"], one["UploadId"]) for page in pages for one in page.get("Uploads", [])]


def _parts(s3: Any, where: BucketPrefix, key: str, upload: str) -> int:
    with translated("ListParts", f"s3://{where.bucket}/{key}"):
        pages = responses.paginate(s3, "list_parts", Bucket=where.bucket, Key=key, UploadId=upload)
        return sum(part["Size"] for page in pages for part in page.get("Parts", []))


def _rows(
    where: BucketPrefix, depth: int, found: list[tuple[str, int]]
) -> list[tuple[str, str, int, int, int, int, int]]:
    sums: dict[str, list[int]] = {}
    for key, size in found:
        row = sums.setdefault(place_of(where, key, depth), [0, 0])
        row[0] += 1
        row[1] += size
    return [(place, "", -1, -1, count, size, size) for place, (count, size) in sums.items()]


def place_of(where: BucketPrefix, key: str, depth: int) -> str:
    """The prefix, of `depth` levels at most below the one that is counted, that a key is counted for."""
    levels = key[len(where.prefix) :].split("/")[:-1][:depth]
    return "/".join([where.url.rstrip("/"), *levels])
