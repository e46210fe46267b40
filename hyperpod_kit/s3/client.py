"""The calls of S3 that checkpoints and training data need.

Named and answered as boto3's client does, so that what is written for one works with the other (connect.py says when it
is boto3's); `S3Refused` carries the answer in `response`, as botocore's ClientError. Source of the requests: Amazon S3
API reference.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import time
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Union
from urllib.parse import quote, unquote_plus
from xml.sax.saxutils import escape

from hyperpod_kit.s3.connections import Connections, ResponseBody, S3Broken
from hyperpod_kit.s3.errors import S3NotConfigured
from hyperpod_kit.signing import chain
from hyperpod_kit.signing.request import PAYLOAD, sign_request_headers
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import clean_one_line

TRIES = 5
PAUSES = BackOff(0.2, 5.0)
"""Times that a request is sent at most, and the seconds between them: as boto3's standard mode has it."""

MAX_RESPONSE_BYTES = 8 << 20
"""Bytes of an answer that is no object: a listing of 1,000 names of 1,024 bytes, each of them escaped, is smaller."""

RETRY_STATUSES = (429, 500, 502, 503, 504)
"""Statuses after which the same request may work."""

REGION_STATUSES = (301, 307, 400)
"""Statuses with which S3 says that a bucket is in another region, or has not been in its own for long."""

STALE_CREDENTIAL_CODES = (
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidAccessKeyId",
    "TokenRefreshRequired",
)
"""Codes after which newer credentials may work."""

OTHER_DOMAINS = ("us-iso", "eu-iso", "eusc-")
"""Beginnings of regions that are elsewhere than at amazonaws.com."""

UNSIGNED = "UNSIGNED-PAYLOAD"


class S3Refused(Exception):
    """The service answered, and it was no success. `response` as botocore's ClientError has it."""

    def __init__(self, operation: str, code: str, message: str, status: int, retries: int) -> None:
        super().__init__(f"An error occurred ({code}) when calling {operation}: {message}")
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries},
        }


class S3Response(NamedTuple):
    """`headers` in lower case; `data`: the body, whole, unless it is an object's: that is read by who asked."""

    status: int
    headers: Dict[str, str]
    body: ResponseBody
    data: bytes


class S3HttpClient:
    """See the module. Safe for threads. Every method raises S3Refused, PermissionError (no credentials), and other
    OSErrors when the service does not answer."""

    def __init__(self, environ: Mapping[str, str], *, tries: int = TRIES, silence: float = 60.0) -> None:
        self._chain = chain.CredentialChain(environ)
        self._region = chain.find_region_or_empty(environ)
        self._endpoint = chain.configured_endpoint_or_empty(environ, "S3")
        if not self._region and not self._endpoint:
            raise S3NotConfigured(
                "no AWS region is configured: not in the environment, not in ~/.aws, not in the metadata service",
                hint="export AWS_REGION=us-west-2",
            )
        if self._region.startswith(OTHER_DOMAINS) and not self._endpoint:
            raise S3NotConfigured(
                f"S3 of {self._region} is not below amazonaws.com", hint="export AWS_ENDPOINT_URL_S3=https://HOST"
            )
        self._regions: Dict[str, str] = {}
        self._tries = tries
        self._connections = Connections(silence)

    def require_credentials(self) -> None:
        """Find the credentials. Raise PermissionError, which names the places looked at."""
        self._chain.get()

    def head_object(self, Bucket: str, Key: str) -> Dict[str, Any]:
        """Size, ETag, and the time at which it was written."""
        headers = self._request_with_retries("HeadObject", "HEAD", Bucket, Key).headers
        if not headers.get("etag"):
            raise S3Broken("an object without an ETag")
        return {
            "ContentLength": _parse_size(headers.get("content-length", "")),
            "ETag": headers["etag"],
            "LastModified": _parse_time(parsedate_to_datetime, headers.get("last-modified")),
        }

    def get_object(
        self, Bucket: str, Key: str, Range: str = "", IfMatch: str = "", ChecksumMode: str = ""
    ) -> Dict[str, Any]:
        """`Body` has `read`, and is given back by `with`; a body that breaks off raises OSError, and one that does not
        have the CRC-32 that the service has of it does so at its end."""
        headers = {name: value for name, value in (("range", Range), ("if-match", IfMatch)) if value}
        if ChecksumMode:
            headers["x-amz-checksum-mode"] = ChecksumMode
        response = self._request_with_retries("GetObject", "GET", Bucket, Key, headers=headers, stream=True)
        if not Range:
            response.body.expect_crc32(response.headers.get("x-amz-checksum-crc32", ""))
        return {"Body": response.body, "ContentLength": response.body.remaining}

    def list_objects_v2(
        self, Bucket: str, Prefix: str = "", Delimiter: str = "", StartAfter: str = "", ContinuationToken: str = ""
    ) -> Dict[str, Any]:
        """Up to 1,000 names."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": Prefix}
        if Delimiter:
            query["delimiter"] = Delimiter
        if ContinuationToken:
            query["continuation-token"] = ContinuationToken
        elif StartAfter:
            query["start-after"] = StartAfter
        page = _parse_xml(self._request_with_retries("ListObjectsV2", "GET", Bucket, "", query).data)
        listing: Dict[str, Any] = {
            "Contents": [
                {
                    "Key": _url_decoded_child_text(item, "Key"),
                    "Size": _parse_size(item.findtext("Size") or "0"),
                    "LastModified": _parse_time(_parse_iso_time, item.findtext("LastModified")),
                }
                for item in page.iter("Contents")
            ],
            "CommonPrefixes": [
                {"Prefix": _url_decoded_child_text(item, "Prefix")} for item in page.iter("CommonPrefixes")
            ],
            "IsTruncated": page.findtext("IsTruncated") == "true",
        }
        if listing["IsTruncated"]:
            listing["NextContinuationToken"] = page.findtext("NextContinuationToken") or ""
            if not listing["NextContinuationToken"]:
                raise S3Broken("a truncated listing without a continuation token")
        return listing

    def put_object(
        self, Bucket: str, Key: str, Body: Union[bytes, bytearray], IfNoneMatch: str = "", ChecksumAlgorithm: str = ""
    ) -> Dict[str, Any]:
        """A small object, whole."""
        if IfNoneMatch:
            headers = {"if-none-match": IfNoneMatch}
        else:
            headers = {}
        response = self._request_with_retries("PutObject", "PUT", Bucket, Key, headers=headers, body=bytes(Body))
        return {"ETag": response.headers.get("etag", "")}

    def delete_object(self, Bucket: str, Key: str) -> Dict[str, Any]:
        """What is not there is fine."""
        self._request_with_retries("DeleteObject", "DELETE", Bucket, Key)
        return {}

    def delete_objects(self, Bucket: str, Delete: Mapping[str, Any], ChecksumAlgorithm: str = "") -> Dict[str, Any]:
        """Up to 1,000 names. `Errors`: those that are still there."""
        names = "".join(f"<Object><Key>{escape(item['Key'])}</Key></Object>" for item in Delete["Objects"])
        body = (f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{names}</Delete>').encode()
        headers = {"x-amz-checksum-crc32": _base64_crc32(body), "content-type": "application/xml"}
        response = self._request_with_retries("DeleteObjects", "POST", Bucket, "", {"delete": ""}, headers, body)
        errors = _parse_xml(response.data).iter("Error")
        return {"Errors": [{"Key": item.findtext("Key") or "", "Code": item.findtext("Code") or ""} for item in errors]}

    def create_multipart_upload(self, Bucket: str, Key: str, ChecksumAlgorithm: str = "") -> Dict[str, Any]:
        """`UploadId`."""
        if ChecksumAlgorithm:
            headers = {"x-amz-checksum-algorithm": ChecksumAlgorithm}
        else:
            headers = {}
        response = self._request_with_retries(
            "CreateMultipartUpload", "POST", Bucket, Key, {"uploads": ""}, headers, b""
        )
        return {"UploadId": _parse_xml(response.data).findtext("UploadId") or ""}

    def upload_part(
        self, Bucket: str, Key: str, PartNumber: int, UploadId: str, Body: bytes, ChecksumAlgorithm: str = ""
    ) -> Dict[str, Any]:
        """`ETag`, and the CRC-32 that the service has checked."""
        query = {"partNumber": str(PartNumber), "uploadId": UploadId}
        response = self._request_with_retries("UploadPart", "PUT", Bucket, Key, query, {}, Body)
        return {"ETag": response.headers["etag"], "ChecksumCRC32": _base64_crc32(Body)}

    def complete_multipart_upload(
        self, Bucket: str, Key: str, UploadId: str, MultipartUpload: Mapping[str, Any], IfNoneMatch: str = ""
    ) -> Dict[str, Any]:
        """The object is there after it. A refusal may come in an answer that begins like a success."""
        parts = "".join(
            "<Part>" + "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in part.items()) + "</Part>"
            for part in MultipartUpload["Parts"]
        )
        body = (
            '<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"{parts}</CompleteMultipartUpload>"
        ).encode()
        if IfNoneMatch:
            headers = {"if-none-match": IfNoneMatch}
        else:
            headers = {}
        operation = "CompleteMultipartUpload"
        response = self._request_with_retries(operation, "POST", Bucket, Key, {"uploadId": UploadId}, headers, body)
        document = _parse_xml(response.data)
        if document.tag == "Error":
            raise S3Refused(operation, document.findtext("Code") or "", document.findtext("Message") or "", 200, 0)
        return {}

    def abort_multipart_upload(self, Bucket: str, Key: str, UploadId: str) -> Dict[str, Any]:
        """Give back what was sent."""
        self._request_with_retries("AbortMultipartUpload", "DELETE", Bucket, Key, {"uploadId": UploadId})
        return {}

    def _request_with_retries(
        self,
        operation: str,
        method: str,
        bucket: str,
        key: str,
        query: Optional[Mapping[str, str]] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Optional[bytes] = None,
        stream: bool = False,
    ) -> S3Response:
        """Send a request until it succeeds or trying again cannot help, and return the response; with `stream` its
        body is still to be read. Raise S3Refused, PermissionError, OSError."""
        full = dict(headers or {})
        if body is not None:
            full["content-length"] = str(len(body))
        if body and method == "PUT":
            full["x-amz-checksum-crc32"] = _base64_crc32(body)
        renewed = False
        for number in range(self._tries):
            if number:
                time.sleep(PAUSES.pause_seconds(number))
            last = number + 1 == self._tries
            region, code, message = "", "", ""
            try:
                response = self._send_once(method, bucket, key, query or {}, full, body, stream)
                if 200 <= response.status < 300:
                    return response
                region = response.headers.get("x-amz-bucket-region", "")
                code, message = _parse_refusal(response)
            except PermissionError:
                raise
            except OSError:
                if last:
                    raise
                continue
            if region and region != self._regions.get(bucket, self._region) and response.status in REGION_STATUSES:
                self._regions[bucket] = region
                continue
            if code in STALE_CREDENTIAL_CODES and not renewed:
                self._chain.discard_cached_credentials()
                renewed = True
                continue
            if last or not (
                response.status in RETRY_STATUSES or code in ("RequestTimeout", "SlowDown", "InternalError")
            ):
                raise S3Refused(operation, code, message, response.status, number)
        raise S3Refused(operation, code, message, response.status, number)

    def _send_once(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Optional[bytes],
        stream: bool,
    ) -> S3Response:
        """Sign and send one request, and return its response. Raise PermissionError without credentials, OSError,
        HTTPException."""
        region = self._regions.get(bucket, self._region) or "us-east-1"
        url = self._url(bucket, key, region, query)
        if url.startswith("https:") and body:
            payload = UNSIGNED
        else:
            payload = hashlib.sha256(body or b"").hexdigest()
        full = sign_request_headers(
            self._chain.get(), "s3", region, method, url, {**headers, PAYLOAD: payload}, payload, time.time()
        )
        status, response_headers, response_body = self._connections.exchange(method, url, full, body)
        if stream and status < 300:
            return S3Response(status, response_headers, response_body, b"")
        with response_body:
            data = response_body.read(MAX_RESPONSE_BYTES)
            if response_body.remaining and response_body.read(1):
                raise S3Broken(f"an answer of more than {MAX_RESPONSE_BYTES} bytes")
        return S3Response(status, response_headers, response_body, data)

    def _url(self, bucket: str, key: str, region: str, query: Mapping[str, str]) -> str:
        """Virtual-hosted, as AWS wants it; by path at an endpoint of one's own, and for a name that no certificate of
        AWS's covers."""
        path = quote(key, safe="/-_.~")
        if self._endpoint:
            base = f"{self._endpoint}/{bucket}/{path}"
        else:
            domain = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
            if "." in bucket:
                base = f"https://{domain}/{bucket}/{path}"
            else:
                base = f"https://{bucket}.{domain}/{path}"
        query_text = "&".join(f"{quote(name, safe='-_.~')}={quote(query[name], safe='-_.~')}" for name in sorted(query))
        if query_text:
            return f"{base}?{query_text}"
        return base


def _base64_crc32(body: bytes) -> str:
    """As S3's headers have it."""
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


def _parse_refusal(response: S3Response) -> Tuple[str, str]:
    """(code, message); an answer to HEAD has no body, so its status is its code."""
    try:
        document = _parse_xml(response.data)
        return document.findtext("Code") or str(response.status), document.findtext("Message") or ""
    except S3Broken:
        return str(response.status), http.client.responses.get(response.status, "")


def _parse_xml(data: bytes) -> ElementTree.Element:
    """Return the root of an XML document, without name spaces. Raise S3Broken."""
    if b"<!" in data:
        raise S3Broken("an answer with XML declarations of its own")
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as err:
        raise S3Broken(f"an answer that is not XML: {err}") from None
    for item in root.iter():
        item.tag = item.tag.rpartition("}")[2]
    return root


def _parse_size(text: str) -> int:
    """Return the size that the text gives. Raise S3Broken."""
    size = parse.parse_decimal(text)
    if size is None:
        raise S3Broken(f"an object of {clean_one_line(text)[:40]!r} bytes")
    return size


_NO_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _parse_time(parse_text: Callable[[str], datetime], text: Optional[str]) -> datetime:
    """Return the time that the text gives, the beginning of 1970 where there is none. Raise S3Broken."""
    if not text:
        return _NO_TIME
    try:
        return parse_text(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise S3Broken(f"an object with the time {clean_one_line(text)[:40]!r}") from None


def _parse_iso_time(text: str) -> datetime:
    """Return the time of `2009-10-12T17:50:30.000Z`, in whole seconds."""
    return datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)


def _url_decoded_child_text(item: ElementTree.Element, tag: str) -> str:
    return unquote_plus(item.findtext(tag) or "", errors="surrogateescape")
