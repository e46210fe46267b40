"""Requests on multipart uploads."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import Iterator, Sequence
from urllib.parse import unquote

from hyperpod_rehearsal.s3 import checksums, xml
from hyperpod_rehearsal.s3.bucket import StoredBucket, check_write
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.messages import Response, S3Request, xml_response
from hyperpod_rehearsal.s3.multipart import Upload
from hyperpod_rehearsal.s3.objects import Checksums, UploadPart
from hyperpod_rehearsal.s3.receive import receive
from hyperpod_rehearsal.s3.store import StoredBuckets


def upload_request(store: StoredBuckets, bucket: StoredBucket, request: S3Request) -> Response:
    """Every request with `uploads` or `uploadId` in its query."""
    if "uploads" in request.query:
        if request.method != "POST":
            raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        return _begin(bucket, request)
    if request.method == "PUT" and not 1 <= request.integer("partNumber", 0) <= 10000:
        # Before anybody looks whether there is such an upload, as S3 does.
        raise S3Error(400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
    upload = bucket.uploads.get(request.query["uploadId"], request.key)
    if request.method == "PUT":
        return _put_part(store, bucket, upload, request)
    if request.method == "POST":
        return _complete(bucket, upload, request)
    if request.method == "DELETE":
        bucket.uploads.close(upload)
        return Response(204)
    return _list_parts(bucket, upload, request)


def _begin(bucket: StoredBucket, request: S3Request) -> Response:
    request.body.read()
    algorithm = request.headers.get("x-amz-checksum-algorithm", "").lower()
    if algorithm and algorithm not in checksums.ALGORITHMS:
        raise S3Error(400, "InvalidRequest", "Checksum algorithm provided is unsupported.")
    kind = request.headers.get("x-amz-checksum-type", "").upper() or (
        "FULL_OBJECT" if algorithm == "crc64nvme" else "COMPOSITE"
    )
    upload = bucket.uploads.create(request.key, request.attributes(), algorithm, kind)
    headers = {}
    if algorithm:
        headers = {"x-amz-checksum-algorithm": algorithm.upper(), "x-amz-checksum-type": kind}
    return xml_response(
        xml.document(
            "InitiateMultipartUploadResult",
            xml.tag("Bucket", bucket.name),
            xml.tag("Key", upload.key),
            xml.tag("UploadId", upload.upload_id),
        ),
        headers=headers,
    )


def _put_part(store: StoredBuckets, bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    number = request.integer("partNumber", 0)
    copied = "x-amz-copy-source" in request.headers
    if copied:
        request.body.read()
        received = receive(_copied_bytes(store, request), bucket.blobs)
    else:
        received = receive(request.body, bucket.blobs, request.headers, request.body.trailers)
    try:
        part = bucket.uploads.add(upload, number, received)
    except S3Error:
        bucket.blobs.discard([received.segment.blob])
        raise
    if copied:
        return xml_response(
            xml.document(
                "CopyPartResult",
                xml.tag("LastModified", xml.timestamp(part.modified)),
                xml.tag("ETag", f'"{part.etag}"'),
            )
        )
    return Response(200, {"ETag": f'"{part.etag}"', **checksums.to_headers(part.checksums)})


def _copied_bytes(store: StoredBuckets, request: S3Request) -> Iterator[bytes]:
    name, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
    first, last = 0, None
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("x-amz-copy-source-range", ""))
    if match:
        first, last = int(match[1]), int(match[2])
    _, ranges = store.bucket(name).open(key, first, last)
    for item in ranges:
        with item.file as file:
            file.seek(item.offset)
            remaining = item.length
            while remaining:
                data = file.read(min(remaining, 1 << 20))
                remaining -= len(data)
                yield data


def _complete(bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    root = xml.parse(request.body.read())
    requested = []
    for element in xml.children(root, "Part"):
        number, etag = xml.text(element, "PartNumber"), xml.text(element, "ETag")
        if number is None or not number.isdigit() or etag is None:
            raise S3Error(400, "MalformedXML", "Each UploadPart needs a PartNumber and an ETag")
        requested.append((int(number), etag))
    parts = bucket.uploads.select_parts(upload, requested)
    conditions = request.conditions()
    check_write(conditions, bucket.find(upload.key))  # before the bytes are looked at once more
    sums = _object_checksums(bucket, upload, parts, request)
    md5 = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False).hexdigest()
    info = bucket.commit(
        upload.key, tuple(part.segment for part in parts), f"{md5}-{len(parts)}", upload.attributes, sums, conditions
    )
    bucket.uploads.close(upload, keep=parts)
    return xml_response(
        xml.document(
            "CompleteMultipartUploadResult",
            xml.tag("Location", f"http://{request.headers.get('host', '')}/{bucket.name}/{upload.key}"),
            xml.tag("Bucket", bucket.name),
            xml.tag("Key", upload.key),
            xml.tag("ETag", f'"{info.etag}"'),
            *(xml.tag(checksums.MEMBERS[name], value) for name, value in sums.values.items()),
            *([xml.tag("ChecksumType", sums.kind)] if sums.values else []),
        )
    )


def _object_checksums(
    bucket: StoredBucket, upload: Upload, parts: Sequence[UploadPart], request: S3Request
) -> Checksums:
    """Checksums of the whole object: computed where the standard library can, else what the client says.

    Raises S3Error BadDigest when the client's value of a whole-object CRC-32 is not the bytes'.
    """
    claimed = checksums.from_headers(request.headers)
    if upload.checksum_kind == "FULL_OBJECT":
        if upload.checksum_algorithm == "crc32":
            actual = _crc32(bucket, parts)
            if claimed.get("crc32", actual) != actual:
                raise S3Error(400, "BadDigest", "The CRC32 you specified did not match the calculated checksum.")
            claimed["crc32"] = actual
        return Checksums(claimed, "FULL_OBJECT")
    values = {}
    for algorithm in checksums.ALGORITHMS:
        of_parts = [part.checksums.get(algorithm) for part in parts]
        available = [value for value in of_parts if value]
        if len(available) == len(parts):
            combined = checksums.composite(algorithm, available)
            if combined is not None:
                values[algorithm] = combined
    return Checksums(values, "COMPOSITE")


def _crc32(bucket: StoredBucket, parts: Sequence[UploadPart]) -> str:
    value = 0
    for part in parts:
        with open(bucket.blobs.path(part.segment.blob), "rb") as file:
            while data := file.read(1 << 20):
                value = zlib.crc32(data, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def _list_parts(bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    limit = min(request.integer("max-parts", 1000), 1000)
    marker = request.integer("part-number-marker", 0)
    numbers = sorted(number for number in upload.parts if number > marker)
    shown = [upload.parts[number] for number in numbers[:limit]]
    truncated = len(numbers) > limit
    parts = (
        xml.nest(
            "Part",
            xml.tag("PartNumber", part.number),
            xml.tag("LastModified", xml.timestamp(part.modified)),
            xml.tag("ETag", f'"{part.etag}"'),
            xml.tag("Size", part.segment.size),
            *(xml.tag(checksums.MEMBERS[name], value) for name, value in part.checksums.items()),
        )
        for part in shown
    )
    return xml_response(
        xml.document(
            "ListPartsResult",
            xml.tag("Bucket", bucket.name),
            xml.tag("Key", upload.key),
            xml.tag("UploadId", upload.upload_id),
            xml.tag("PartNumberMarker", marker),
            *([xml.tag("NextPartNumberMarker", shown[-1].number)] if truncated and shown else []),
            xml.tag("MaxParts", limit),
            xml.tag("IsTruncated", truncated),
            *parts,
        )
    )
