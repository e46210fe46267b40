"""Requests on multipart uploads."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import Iterator, Sequence
from urllib.parse import unquote

from hyperpod_rehearsal.s3 import checksums, xml
from hyperpod_rehearsal.s3.bucket import StoredBucket, require_write_conditions
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.messages import Response, S3Request, xml_response
from hyperpod_rehearsal.s3.multipart import Upload
from hyperpod_rehearsal.s3.objects import Checksums, UploadPart
from hyperpod_rehearsal.s3.receive import receive_verified_body_into_blob
from hyperpod_rehearsal.s3.store import StoredBuckets


def handle_upload_request(store: StoredBuckets, bucket: StoredBucket, request: S3Request) -> Response:
    """Execute a request with `uploads` or `uploadId` in its query."""
    if "uploads" in request.query:
        if request.method != "POST":
            raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        return _initiate_upload(bucket, request)
    if request.method == "PUT" and not 1 <= request.query_integer("partNumber", 0) <= 10000:
        # Before anybody looks whether there is such an upload, as S3 does.
        raise S3Error(400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
    upload = bucket.uploads.find_open_upload(request.query["uploadId"], request.key)
    if request.method == "PUT":
        return _put_part(store, bucket, upload, request)
    if request.method == "POST":
        return _complete_upload(bucket, upload, request)
    if request.method == "DELETE":
        bucket.uploads.remove_upload(upload)
        return Response(204)
    return _list_parts(bucket, upload, request)


def _initiate_upload(bucket: StoredBucket, request: S3Request) -> Response:
    request.body.read()
    algorithm = request.headers.get("x-amz-checksum-algorithm", "").lower()
    if algorithm and algorithm not in checksums.ALGORITHMS:
        raise S3Error(400, "InvalidRequest", "Checksum algorithm provided is unsupported.")
    kind = request.headers.get("x-amz-checksum-type", "").upper() or (
        "FULL_OBJECT" if algorithm == "crc64nvme" else "COMPOSITE"
    )
    upload = bucket.uploads.create_upload(request.key, request.object_attributes(), algorithm, kind)
    headers = {}
    if algorithm:
        headers = {"x-amz-checksum-algorithm": algorithm.upper(), "x-amz-checksum-type": kind}
    return xml_response(
        xml.xml_document(
            "InitiateMultipartUploadResult",
            xml.text_element("Bucket", bucket.name),
            xml.text_element("Key", upload.key),
            xml.text_element("UploadId", upload.upload_id),
        ),
        headers=headers,
    )


def _put_part(store: StoredBuckets, bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    number = request.query_integer("partNumber", 0)
    copied = "x-amz-copy-source" in request.headers
    if copied:
        request.body.read()
        received = receive_verified_body_into_blob(_read_copy_source(store, request), bucket.blobs)
    else:
        received = receive_verified_body_into_blob(request.body, bucket.blobs, request.headers, request.body.trailers)
    try:
        part = bucket.uploads.record_part(upload, number, received)
    except S3Error:
        bucket.blobs.delete_blobs([received.segment.blob])
        raise
    if copied:
        return xml_response(
            xml.xml_document(
                "CopyPartResult",
                xml.text_element("LastModified", xml.format_timestamp(part.modified)),
                xml.text_element("ETag", f'"{part.etag}"'),
            )
        )
    return Response(200, {"ETag": f'"{part.etag}"', **checksums.checksum_headers(part.checksums)})


def _read_copy_source(store: StoredBuckets, request: S3Request) -> Iterator[bytes]:
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


def _complete_upload(bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    root = xml.parse_document(request.body.read())
    requested = []
    for element in xml.find_children(root, "Part"):
        number, etag = xml.child_text(element, "PartNumber"), xml.child_text(element, "ETag")
        if number is None or not number.isdigit() or etag is None:
            raise S3Error(400, "MalformedXML", "Each UploadPart needs a PartNumber and an ETag")
        requested.append((int(number), etag))
    parts = bucket.uploads.select_and_validate_parts(upload, requested)
    conditions = request.write_conditions()
    require_write_conditions(conditions, bucket.find(upload.key))  # before the bytes are looked at once more
    sums = _object_checksums(bucket, upload, parts, request)
    md5 = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False).hexdigest()
    info = bucket.commit(
        upload.key, tuple(part.segment for part in parts), f"{md5}-{len(parts)}", upload.attributes, sums, conditions
    )
    bucket.uploads.remove_upload(upload, parts_to_keep=parts)
    return xml_response(
        xml.xml_document(
            "CompleteMultipartUploadResult",
            xml.text_element("Location", f"http://{request.headers.get('host', '')}/{bucket.name}/{upload.key}"),
            xml.text_element("Bucket", bucket.name),
            xml.text_element("Key", upload.key),
            xml.text_element("ETag", f'"{info.etag}"'),
            *(xml.text_element(checksums.MEMBERS[name], value) for name, value in sums.values.items()),
            *([xml.text_element("ChecksumType", sums.kind)] if sums.values else []),
        )
    )


def _object_checksums(
    bucket: StoredBucket, upload: Upload, parts: Sequence[UploadPart], request: S3Request
) -> Checksums:
    """Checksums of the whole object: computed where the standard library can, else what the client says.

    Raises S3Error BadDigest when the client's value of a whole-object CRC-32 is not the bytes'.
    """
    claimed = checksums.checksums_from_headers(request.headers)
    if upload.checksum_kind == "FULL_OBJECT":
        if upload.checksum_algorithm == "crc32":
            actual = _crc32_of_parts(bucket, parts)
            if claimed.get("crc32", actual) != actual:
                raise S3Error(400, "BadDigest", "The CRC32 you specified did not match the calculated checksum.")
            claimed["crc32"] = actual
        return Checksums(claimed, "FULL_OBJECT")
    values = {}
    for algorithm in checksums.ALGORITHMS:
        of_parts = [part.checksums.get(algorithm) for part in parts]
        available = [value for value in of_parts if value]
        if len(available) == len(parts):
            combined = checksums.composite_checksum(algorithm, available)
            if combined is not None:
                values[algorithm] = combined
    return Checksums(values, "COMPOSITE")


def _crc32_of_parts(bucket: StoredBucket, parts: Sequence[UploadPart]) -> str:
    value = 0
    for part in parts:
        with open(bucket.blobs.path(part.segment.blob), "rb") as file:
            while data := file.read(1 << 20):
                value = zlib.crc32(data, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def _list_parts(bucket: StoredBucket, upload: Upload, request: S3Request) -> Response:
    limit = min(request.query_integer("max-parts", 1000), 1000)
    marker = request.query_integer("part-number-marker", 0)
    numbers = sorted(number for number in upload.parts if number > marker)
    shown = [upload.parts[number] for number in numbers[:limit]]
    truncated = len(numbers) > limit
    parts = (
        xml.nested_element(
            "Part",
            xml.text_element("PartNumber", part.number),
            xml.text_element("LastModified", xml.format_timestamp(part.modified)),
            xml.text_element("ETag", f'"{part.etag}"'),
            xml.text_element("Size", part.segment.size),
            *(xml.text_element(checksums.MEMBERS[name], value) for name, value in part.checksums.items()),
        )
        for part in shown
    )
    return xml_response(
        xml.xml_document(
            "ListPartsResult",
            xml.text_element("Bucket", bucket.name),
            xml.text_element("Key", upload.key),
            xml.text_element("UploadId", upload.upload_id),
            xml.text_element("PartNumberMarker", marker),
            *([xml.text_element("NextPartNumberMarker", shown[-1].number)] if truncated and shown else []),
            xml.text_element("MaxParts", limit),
            xml.text_element("IsTruncated", truncated),
            *parts,
        )
    )
