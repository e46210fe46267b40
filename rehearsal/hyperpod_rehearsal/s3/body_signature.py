"""What a signature says of a body: its digest, a chain of signed chunks, or nothing."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Iterator, Mapping

from hyperpod_rehearsal.credentials.signature import Claim
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.standins.mountpoint_s3 import sigv4

SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
PAYLOAD_MARKERS = (sigv4.UNSIGNED, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", SIGNED_CHUNKS, f"{SIGNED_CHUNKS}-TRAILER")
TRAILER_SIGNATURE = "x-amz-trailer-signature"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BodySignature:
    """Of one body. Every method raises S3Error as S3 answers what does not fit."""

    def __init__(self, claim: Claim) -> None:
        payload = claim.payload or ""
        if payload not in PAYLOAD_MARKERS and not _DIGEST.fullmatch(payload):
            raise S3Error(
                400,
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of the STREAMING- words, or a valid sha256 value.",
            )
        if _DIGEST.fullmatch(payload):
            self.digest = payload
        else:
            self.digest = ""
        self.chunked = payload.startswith("STREAMING-")
        self.signed_chunks = payload.startswith(SIGNED_CHUNKS)
        self._signed_trailer = payload == f"{SIGNED_CHUNKS}-TRAILER"
        self._claim = claim
        self._previous_signature = claim.signature

    def verify_digest(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged; at their end raise S3Error when their digest is not the signed one."""
        if not self.digest:
            yield from chunks
            return
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
            yield chunk
        if not hmac.compare_digest(digest.hexdigest(), self.digest):
            raise S3Error(
                400,
                "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )

    def verify_chunk_signature(self, parameters: bytes, digest: str) -> None:
        """Verify the signature of a chunk. `parameters`: what follows its size; `digest`: SHA-256 of its bytes."""
        if self.signed_chunks:
            signature = parameters.partition(b"chunk-signature=")[2].strip()
            self._verify_next_signature(signature, f"{sigv4.ALGORITHM}-PAYLOAD", sigv4.EMPTY_SHA256, digest)

    def verify_trailer_signature(self, trailers: Mapping[str, str]) -> None:
        """Verify the signature of the trailers, after the last chunk, where they are signed."""
        if self._signed_trailer:
            text = "".join(f"{name}:{value}\n" for name, value in trailers.items() if name != TRAILER_SIGNATURE)
            self._verify_next_signature(
                trailers.get(TRAILER_SIGNATURE, "").encode(),
                f"{sigv4.ALGORITHM}-TRAILER",
                hashlib.sha256(text.encode("latin-1")).hexdigest(),
            )

    def _verify_next_signature(self, signature: bytes, algorithm: str, *rest: str) -> None:
        claim = self._claim
        expected = sigv4.compute_signature(
            claim.signing_key, algorithm, claim.stamp, claim.scope, self._previous_signature, *rest
        )
        if not hmac.compare_digest(expected.encode(), signature):
            raise S3Error(
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the "
                "signature you provided. Check your key and signing method.",
            )
        self._previous_signature = expected
