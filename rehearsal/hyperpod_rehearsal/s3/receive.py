"""A body on its way into a blob: written, digested, checked."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Callable, Iterable, Mapping

from hyperpod_rehearsal.s3 import checksums
from hyperpod_rehearsal.s3.blobs import BlobDirectory
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.objects import Received, Segment


def receive_verified_body_into_blob(
    chunks: Iterable[bytes],
    blobs: BlobDirectory,
    headers: Mapping[str, str] | None = None,
    trailers: Callable[[], Mapping[str, str]] = dict,
) -> Received:
    """Write a body to a fresh blob and verify what the client says about it.

    headers: of the request, lower-case names; trailers: called after the last chunk.
    Raises S3Error BadDigest or InvalidRequest; nothing is left on disk then.
    """
    headers = headers or {}
    md5 = hashlib.md5(usedforsecurity=False)
    digests = {name: checksums.new_digest(name) for name in checksums.announced_algorithms(headers)}
    running = [md5, *(digest for digest in digests.values() if digest is not None)]
    name, file = blobs.create_blob()
    size = 0
    try:
        with file:
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
                for digest in running:
                    digest.update(chunk)
        claimed = {**checksums.checksums_from_headers(headers), **checksums.checksums_from_headers(trailers())}
        for algorithm, value in claimed.items():
            computed = digests.get(algorithm)
            if computed is not None and _decode_base64(value) != computed.digest():
                raise S3Error(
                    400, "BadDigest", f"The {algorithm.upper()} you specified did not match the calculated checksum."
                )
        content_md5 = headers.get("content-md5")
        if content_md5 and _decode_base64(content_md5) != md5.digest():
            raise S3Error(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
    except BaseException:
        blobs.delete_blobs([name])
        raise
    return Received(Segment(name, size), md5.hexdigest(), claimed)


def _decode_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise S3Error(400, "InvalidRequest", f"Value for a checksum header is invalid: {value}") from None
