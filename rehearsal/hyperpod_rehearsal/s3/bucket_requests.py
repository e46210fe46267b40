"""Requests on the service and on buckets: create, list, delete many."""

from __future__ import annotations

import base64
import binascii
from typing import Mapping
from urllib.parse import quote

from hyperpod_rehearsal.s3 import xml
from hyperpod_rehearsal.s3.bucket import StoredBucket
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.listing import LAST, list_page
from hyperpod_rehearsal.s3.messages import Response, S3Request, xml_response
from hyperpod_rehearsal.s3.objects import ObjectInfo
from hyperpod_rehearsal.s3.store import StoredBuckets

ABSENT = {
    "policy": "NoSuchBucketPolicy",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "tagging": "NoSuchTagSet",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "cors": "NoSuchCORSConfiguration",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "ownershipControls": "OwnershipControlsNotFoundError",
    "website": "NoSuchWebsiteConfiguration",
}
"""Settings that are accepted and not enforced; asked for, they are not there."""

UNSUPPORTED = (
    "versions",
    "acl",
    "replication",
    "object-lock",
    "notification",
    "accelerate",
    "analytics",
    "inventory",
    "metrics",
    "logging",
    "requestPayment",
    "intelligent-tiering",
)


def list_buckets(store: StoredBuckets) -> Response:
    """ListBuckets."""
    buckets = (
        xml.nested_element(
            "Bucket",
            xml.text_element("Name", name),
            xml.text_element("CreationDate", xml.format_timestamp(store.bucket(name).created)),
        )
        for name in store.bucket_names()
    )
    return xml_response(
        xml.xml_document(
            "ListAllMyBucketsResult",
            xml.nested_element("Owner", xml.text_element("ID", "rehearsal")),
            xml.nested_element("Buckets", *buckets),
        )
    )


def handle_bucket_request(store: StoredBuckets, request: S3Request) -> Response:
    """Execute a request whose path names a bucket and no key."""
    query = request.query
    unsupported = [name for name in UNSUPPORTED if name in query]
    if unsupported or ("versioning" in query and request.method == "PUT"):
        raise S3Error(501, "NotImplemented", f"the rehearsal's buckets have no {(unsupported or ['versioning'])[0]}")
    setting = next((name for name in ABSENT if name in query), None)
    if request.method == "PUT":
        request.body.read()
        if setting is None:
            store.create_bucket(request.bucket)
            return Response(200, {"Location": f"/{request.bucket}"})
        store.bucket(request.bucket)
        return Response(200)
    bucket = store.bucket(request.bucket)
    if request.method == "HEAD":
        return Response(200, {"x-amz-bucket-region": "us-east-1"})
    if request.method == "DELETE":
        if setting is None:
            store.delete_bucket(request.bucket)
        return Response(204)
    if request.method == "POST" and "delete" in query:
        return delete_objects(bucket, request)
    if request.method != "GET":
        raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
    if setting is not None:
        raise S3Error(404, ABSENT[setting], f"The {setting} configuration does not exist")
    if "location" in query:
        return xml_response(xml.xml_document("LocationConstraint"))
    if "versioning" in query:
        return xml_response(xml.xml_document("VersioningConfiguration"))
    if "uploads" in query:
        return list_uploads(bucket, request)
    return list_objects(bucket, request)


def _start_key_of_list_v1(query: Mapping[str, str], delimiter: str) -> str:
    """The key behind which a page of ListObjects begins."""
    after = query.get("marker", "")
    # The marker of a truncated page may be a common prefix, which must not be listed a second time.
    if delimiter and after.endswith(delimiter):
        after += LAST
    return after


def _start_key_of_list_v2(query: Mapping[str, str], token: str) -> str:
    """The key behind which a page of ListObjectsV2 begins."""
    if token:
        return _decode_token(token)
    return query.get("start-after", "")


def list_objects(bucket: StoredBucket, request: S3Request) -> Response:
    """ListObjects and ListObjectsV2."""
    query = request.query
    version_2 = query.get("list-type") == "2"
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(request.query_integer("max-keys", 1000), 1000)
    token = query.get("continuation-token", "")
    if version_2:
        after = _start_key_of_list_v2(query, token)
    else:
        after = _start_key_of_list_v1(query, delimiter)
    page = list_page(bucket.sorted_keys(), prefix, delimiter, after, limit)
    infos = [info for info in map(bucket.find, page.keys) if info is not None]
    encoded = query.get("encoding-type") == "url"

    def name(text: str) -> str:
        if encoded:
            return quote(text, safe="/")
        return text

    parts = [
        xml.text_element("Name", bucket.name),
        xml.text_element("Prefix", name(prefix)),
        xml.text_element("MaxKeys", limit),
        xml.text_element("IsTruncated", page.resume is not None),
    ]
    if delimiter:
        parts.append(xml.text_element("Delimiter", name(delimiter)))
    if encoded:
        parts.append(xml.text_element("EncodingType", "url"))
    if version_2:
        parts.append(xml.text_element("KeyCount", len(infos) + len(page.prefixes)))
        if token:
            parts.append(xml.text_element("ContinuationToken", token))
        if query.get("start-after"):
            parts.append(xml.text_element("StartAfter", name(query["start-after"])))
        if page.resume is not None:
            parts.append(xml.text_element("NextContinuationToken", _encode_token(page.resume)))
    else:
        parts.append(xml.text_element("Marker", name(query.get("marker", ""))))
        if page.resume is not None and delimiter:
            parts.append(xml.text_element("NextMarker", name(page.resume.rstrip(LAST))))
    parts += [_object_entry_xml(info, name(info.key)) for info in infos]
    parts += [xml.nested_element("CommonPrefixes", xml.text_element("Prefix", name(item))) for item in page.prefixes]
    return xml_response(xml.xml_document("ListBucketResult", *parts))


def delete_objects(bucket: StoredBucket, request: S3Request) -> Response:
    """DeleteObjects."""
    root = xml.parse_document(request.body.read())
    keys = [xml.child_text(item, "Key") or "" for item in xml.find_children(root, "Object")]
    if not keys or len(keys) > 1000:
        raise S3Error(400, "MalformedXML", "A DeleteObjects request names between 1 and 1000 keys")
    denied = [key for key in keys if not request.may_write(key)]
    keys = [key for key in keys if request.may_write(key)]
    for key in keys:
        bucket.delete(key)
    if xml.child_text(root, "Quiet") == "true":
        keys = []
    return xml_response(
        xml.xml_document(
            "DeleteResult",
            *(xml.nested_element("Deleted", xml.text_element("Key", key)) for key in keys),
            *(
                xml.nested_element(
                    "Error",
                    xml.text_element("Key", key),
                    xml.text_element("Code", "AccessDenied"),
                    xml.text_element("Message", "Access Denied"),
                )
                for key in denied
            ),
        )
    )


def list_uploads(bucket: StoredBucket, request: S3Request) -> Response:
    """ListMultipartUploads, in one page."""
    prefix = request.query.get("prefix", "")
    uploads = (
        xml.nested_element(
            "Upload",
            xml.text_element("Key", upload.key),
            xml.text_element("UploadId", upload.upload_id),
            xml.text_element("StorageClass", upload.attributes.storage_class),
            xml.text_element("Initiated", xml.format_timestamp(upload.initiated)),
        )
        for upload in bucket.uploads.list_open_uploads(prefix)
    )
    return xml_response(
        xml.xml_document(
            "ListMultipartUploadsResult",
            xml.text_element("Bucket", bucket.name),
            xml.text_element("Prefix", prefix),
            xml.text_element("IsTruncated", False),
            *uploads,
        )
    )


def _object_entry_xml(info: ObjectInfo, name: str) -> str:
    algorithms = [xml.text_element("ChecksumAlgorithm", algorithm.upper()) for algorithm in info.checksums.values]
    return xml.nested_element(
        "Contents",
        xml.text_element("Key", name),
        xml.text_element("LastModified", xml.format_timestamp(info.modified)),
        xml.text_element("ETag", f'"{info.etag}"'),
        *algorithms,
        xml.text_element("Size", info.size),
        xml.text_element("StorageClass", info.attributes.storage_class),
    )


def _encode_token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode("utf-8", "surrogatepass")).decode()


def _decode_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise S3Error(400, "InvalidArgument", "The continuation token provided is incorrect") from None
