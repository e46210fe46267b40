"""Just enough S3 to fetch a prefix: list and get, path style, from the rehearsal's own endpoint, signed.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Iterator, Mapping, Sequence, Tuple
from xml.etree import ElementTree

from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import EMPTY_SHA256, AccessKey, sign_request_headers

# The endpoint is on the node's own network: a proxy from the environment would be wrong.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class S3ClientError(Exception):
    """The endpoint refused, or did not answer within the retries."""


def split_uri(uri: str) -> Tuple[str, str]:
    """(bucket, prefix) of s3://bucket/prefix/; the prefix is empty or ends in a slash. Raises S3ClientError."""
    if not uri.startswith("s3://"):
        raise S3ClientError(f"not an S3 URI: {uri}")
    bucket, _, prefix = uri[len("s3://") :].partition("/")
    prefix = prefix.strip("/")
    return bucket, prefix + "/" if prefix else ""


def access_key_from_environment(environ: Mapping[str, str]) -> AccessKey:
    """Return the node role's access key from the AWS_* variables. Raises S3ClientError when one is not set."""
    try:
        return AccessKey(
            environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], environ.get("AWS_SESSION_TOKEN")
        )
    except KeyError as err:
        raise S3ClientError(f"no credentials: {err} is not set") from None


def _get_with_retries(
    access_key: AccessKey, endpoint: str, path: str, query: Sequence[Tuple[str, str]], deadline: float
) -> bytes:
    spelt = "&".join(f"{name}={urllib.parse.quote(value, safe='-_.~')}" for name, value in sorted(query))
    url = f"{endpoint}{path}" + (f"?{spelt}" if spelt else "")
    while True:
        headers = sign_request_headers(
            access_key,
            "us-east-1",
            "GET",
            path,
            spelt,
            {"host": urllib.parse.urlsplit(endpoint).netloc, "x-amz-content-sha256": EMPTY_SHA256},
        )
        try:
            with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=20) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as err:
            if err.code < 500:
                code = _parse_error_code(err.read())
                raise S3ClientError(f"{url}: HTTP {err.code} {code}") from err
            problem: Exception = err
        except OSError as err:
            problem = err
        if time.monotonic() > deadline:
            raise S3ClientError(f"{url}: {problem}")
        time.sleep(0.25)


def _parse_error_code(body: bytes) -> str:
    try:
        return ElementTree.fromstring(body).findtext("Code") or ""
    except ElementTree.ParseError:
        return ""


def list_keys(access_key: AccessKey, endpoint: str, bucket: str, prefix: str, deadline: float) -> Iterator[str]:
    """All keys below a prefix. `deadline`: monotonic seconds until which a silent endpoint is tried again."""
    token = ""
    while True:
        query = [("list-type", "2"), ("prefix", prefix)]
        if token:
            query.append(("continuation-token", token))
        page = ElementTree.fromstring(_get_with_retries(access_key, endpoint, f"/{bucket}", query, deadline))
        space = ""
        if page.tag.startswith("{"):
            space = page.tag[: page.tag.index("}") + 1]
        for entry in page.iter(space + "Contents"):
            key = entry.findtext(space + "Key")
            if key:
                yield key
        token = page.findtext(space + "NextContinuationToken") or ""
        if not token:
            return


def download_prefix(access_key: AccessKey, endpoint: str, uri: str, target: str, timeout: float = 30.0) -> int:
    """Fetch every object below `uri` into the directory `target`; returns how many. Raises S3ClientError."""
    bucket, prefix = split_uri(uri)
    deadline = time.monotonic() + timeout
    count = 0
    for key in list_keys(access_key, endpoint, bucket, prefix, deadline):
        relative = key[len(prefix) :]
        if not relative or relative.endswith("/"):
            continue
        path = os.path.normpath(os.path.join(target, relative))
        if not path.startswith(os.path.normpath(target) + os.sep):
            raise S3ClientError(f"key {key} leaves the bundle's directory")
        by_descriptor.make_directories(os.path.dirname(path))
        data = _get_with_retries(
            access_key, endpoint, f"/{bucket}/{urllib.parse.quote(key, safe='/-_.~')}", (), deadline
        )
        by_descriptor.write_bytes(path, data)
        count += 1
    return count
