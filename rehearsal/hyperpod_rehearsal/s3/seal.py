"""What a signature says of a body: its digest, a chain of signed chunks, or nothing."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Iterator, Mapping

from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.signature import Claim
from hyperpod_rehearsal.standins import sigv4

SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
WORDS = (sigv4.UNSIGNED, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", SIGNED_CHUNKS, f"{SIGNED_CHUNKS}-TRAILER")
TRAILER_SIGNATURE = "x-amz-trailer-signature"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BodySeal:
    """Of one body. Every method raises S3Error as S3 answers what does not fit."""

    def __init__(self, claim: Claim) -> None:
        payload = claim.payload or ""
        if payload not in WORDS and not _DIGEST.fullmatch(payload):
            raise S3Error(
                400,
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of the STREAMING- words, or a valid sha256 value.",
            )
        self.digest = payload if _DIGEST.fullmatch(payload) else ""
        self.chunked = payload.startswith("STREAMING-")
        self.signed_chunks = payload.startswith(SIGNED_CHUNKS)
        self._signed_trailer = payload == f"{SIGNED_CHUNKS}-TRAILER"
        self._claim = claim
        self._last = claim.signature

    def watched(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same bytes, and at their end the look at their digest."""
        if not self.digest:
            yield from chunks
            return
        found = hashlib.sha256()
        for chunk in chunks:
            found.update(chunk)
            yield chunk
        if not hmac.compare_digest(found.hexdigest(), self.digest):
            raise S3Error(
                400,
                "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )

    def chunk(self, parameters: bytes, digest: str) -> None:
        """After each chunk. `parameters`: what stands behind its size; `digest`: SHA-256 of its bytes."""
        if self.signed_chunks:
            said = parameters.partition(b"chunk-signature=")[2].strip()
            self._follow(said, f"{sigv4.ALGORITHM}-PAYLOAD", sigv4.EMPTY_SHA256, digest)

    def trailers(self, trailers: Mapping[str, str]) -> None:
        """After the last chunk."""
        if self._signed_trailer:
            text = "".join(f"{name}:{value}\n" for name, value in trailers.items() if name != TRAILER_SIGNATURE)
            self._follow(
                trailers.get(TRAILER_SIGNATURE, "").encode(),
                f"{sigv4.ALGORITHM}-TRAILER",
                hashlib.sha256(text.encode("latin-1")).hexdigest(),
            )

    def _follow(self, said: bytes, algorithm: str, *rest: str) -> None:
        claim = self._claim
        made = sigv4.signature(claim.signing_key, algorithm, claim.stamp, claim.scope, self._last, *rest)
        if not hmac.compare_digest(made.encode(), said):
            raise S3Error(
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the "
                "signature you provided. Check your key and signing method.",
            )
        self._last = made
