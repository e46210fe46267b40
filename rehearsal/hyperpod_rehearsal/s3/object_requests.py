"""Requests on objects: put, copy, get with ranges and conditions, head, delete."""

from __future__ import annotations

import re
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import unquote

from hyperpod_rehearsal.s3 import checksums, xml
from hyperpod_rehearsal.s3.bucket import StoredBucket
from hyperpod_rehearsal.s3.errors import S3Error, precondition_failed
from hyperpod_rehearsal.s3.messages import Response, S3Request, xml_response
from hyperpod_rehearsal.s3.objects import ARCHIVED, Checksums, ObjectInfo
from hyperpod_rehearsal.s3.receive import receive_verified_body_into_blob
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.s3.upload_requests import handle_upload_request

MAX_KEY_BYTES = 1024
"""Bytes of a key in UTF-8."""
UNSUPPORTED = ("acl", "attributes", "retention", "legal-hold", "torrent", "restore", "select", "versionId")


def handle_object_request(store: StoredBuckets, request: S3Request) -> Response:
    """Execute a request whose path names a key."""
    if len(request.key.encode("utf-8", "surrogateescape")) > MAX_KEY_BYTES:
        raise S3Error(400, "KeyTooLongError", "Your key is too long")
    bucket = store.bucket(request.bucket)
    unsupported = [name for name in UNSUPPORTED if name in request.query]
    if unsupported:
        raise S3Error(501, "NotImplemented", f"the rehearsal's objects have no {unsupported[0]}")
    if "uploads" in request.query or "uploadId" in request.query:
        return handle_upload_request(store, bucket, request)
    if "tagging" in request.query:
        return _respond_to_tagging_without_storing(bucket, request)
    if request.method == "PUT":
        if "x-amz-copy-source" in request.headers:
            return copy_object(store, bucket, request)
        return put_object(bucket, request)
    if request.method == "DELETE":
        bucket.delete(request.key, request.write_conditions())
        return Response(204)
    if request.method in ("GET", "HEAD"):
        return get_object(bucket, request)
    raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")


def put_object(bucket: StoredBucket, request: S3Request) -> Response:
    """PutObject."""
    received = receive_verified_body_into_blob(request.body, bucket.blobs, request.headers, request.body.trailers)
    try:
        info = bucket.commit(
            request.key,
            (received.segment,),
            received.md5,
            request.object_attributes(),
            Checksums(received.checksums),
            request.write_conditions(),
        )
    except BaseException:
        bucket.blobs.delete_blobs([received.segment.blob])
        raise
    headers = {"ETag": f'"{info.etag}"', **checksums.checksum_headers(received.checksums)}
    if received.checksums:
        headers["x-amz-checksum-type"] = "FULL_OBJECT"
    return Response(200, headers)


def parse_copy_source(store: StoredBuckets, request: S3Request) -> tuple[StoredBucket, str]:
    """The bucket and the key that x-amz-copy-source names."""
    source = unquote(request.headers["x-amz-copy-source"]).lstrip("/")
    name, _, key = source.partition("/")
    if not key:
        raise S3Error(400, "InvalidArgument", "Copy Source must mention the source bucket and key")
    return store.bucket(name), key.partition("?versionId=")[0]


def copy_object(store: StoredBuckets, bucket: StoredBucket, request: S3Request) -> Response:
    """CopyObject; the bytes are shared, not copied."""
    source, key = parse_copy_source(store, request)
    info, segments = bucket.link_segments_from(source, key)
    try:
        expected_etag = request.headers.get("x-amz-copy-source-if-match")
        if expected_etag is not None and expected_etag.strip('"') != info.etag:
            raise precondition_failed("x-amz-copy-source-If-Match")
        replace = request.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
        requested = request.object_attributes()
        if replace:
            attributes = requested
        else:
            attributes = info.attributes.with_storage_class(requested.storage_class)
        copied = bucket.commit(request.key, segments, info.etag, attributes, info.checksums, request.write_conditions())
    except BaseException:
        bucket.blobs.delete_blobs(segment.blob for segment in segments)
        raise
    return xml_response(
        xml.xml_document(
            "CopyObjectResult",
            xml.text_element("LastModified", xml.format_timestamp(copied.modified)),
            xml.text_element("ETag", f'"{copied.etag}"'),
        )
    )


def get_object(bucket: StoredBucket, request: S3Request) -> Response:
    """GetObject and HeadObject: conditions, one range, one part."""
    info = bucket.get(request.key)
    headers = object_headers(info)
    if not _is_modified_or_raise_precondition_failed(request, info):
        return Response(304, {"ETag": headers["ETag"], "Last-Modified": headers["Last-Modified"]})
    if request.method == "GET" and info.attributes.storage_class in ARCHIVED:
        raise S3Error(403, "InvalidObjectState", "The operation is not valid for the object's storage class")
    first, last = requested_range(request, info)
    partial = "range" in request.headers and (first, last) != (0, -1)
    if "partNumber" in request.query:
        partial = True
        headers["x-amz-mp-parts-count"] = str(len(info.segments))
    elif not partial and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers.update(checksums.checksum_headers(info.checksums.values))
        if info.checksums.values:
            headers["x-amz-checksum-type"] = info.checksums.kind
    if partial:
        status = 206
        headers["Content-Range"] = f"bytes {first}-{last}/{info.size}"
    else:
        status, first, last = 200, 0, info.size - 1
    if request.method == "HEAD":
        return Response(status, {**headers, "Content-Length": str(last - first + 1)})
    opened, ranges = bucket.open(request.key, first, last)
    if opened.etag != info.etag:
        # Replaced between the two looks: start again with the new object, never mix two.
        for item in ranges:
            item.file.close()
        return get_object(bucket, request)
    return Response(status, headers, ranges=ranges)


def object_headers(info: ObjectInfo) -> dict[str, str]:
    """The headers that describe an object."""
    return {
        "ETag": f'"{info.etag}"',
        "Last-Modified": formatdate(info.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        **info.attributes.headers,
        **info.attributes.metadata,
    }


def requested_range(request: S3Request, info: ObjectInfo) -> tuple[int, int]:
    """First and last byte (inclusive) that a Range or a partNumber asks for; (0, -1) for the whole object.

    Raises S3Error InvalidRange, InvalidPart. A Range that is not understood counts for the whole, as in HTTP.
    """
    if "partNumber" in request.query:
        number = request.query_integer("partNumber", 0)
        if not 1 <= number <= max(1, len(info.segments)):
            raise S3Error(416, "InvalidPartNumber", "The requested partnumber is not satisfiable")
        start = sum(segment.size for segment in info.segments[: number - 1])
        return start, start + info.segments[number - 1].size - 1
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", "").replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return 0, -1
    if match[1]:
        first = int(match[1])
        if match[2]:
            last = min(int(match[2]), info.size - 1)
        else:
            last = info.size - 1
        if match[2] and int(match[2]) < first:
            return 0, -1
    else:
        first, last = max(0, info.size - int(match[2])), info.size - 1
    if first >= info.size:
        raise S3Error(416, "InvalidRange", "The requested range is not satisfiable")
    return first, last


def _is_modified_or_raise_precondition_failed(request: S3Request, info: ObjectInfo) -> bool:
    """False for 304 Not Modified. Raises S3Error PreconditionFailed."""
    headers = request.headers
    if "if-match" in headers:
        if headers["if-match"].strip('"') not in ("*", info.etag):
            raise precondition_failed("If-Match")
    elif "if-unmodified-since" in headers and int(info.modified) > _parse_http_date(headers["if-unmodified-since"]):
        raise precondition_failed("If-Unmodified-Since")
    if "if-none-match" in headers:
        return headers["if-none-match"].strip('"') not in ("*", info.etag)
    return "if-modified-since" not in headers or int(info.modified) > _parse_http_date(headers["if-modified-since"])


def _parse_http_date(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        raise S3Error(400, "InvalidArgument", f"not an HTTP date: {date}") from None


def _respond_to_tagging_without_storing(bucket: StoredBucket, request: S3Request) -> Response:
    """Respond to a tagging request. Tags are accepted and not stored."""
    bucket.get(request.key)
    request.body.read()
    if request.method == "GET":
        return xml_response(xml.xml_document("Tagging", xml.nested_element("TagSet")))
    return Response(204 if request.method == "DELETE" else 200)
