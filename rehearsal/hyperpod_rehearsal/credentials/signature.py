"""Who signed a request: AWS Signature Version 4 in the headers or in a presigned URL, and version 2 in one.

First `claim`, which needs no byte of the body and turns strangers away; then `Claim.verify`, with the body's digest
where the signature holds it.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import Iterator, Mapping, Optional, Sequence
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.standins.mountpoint_s3 import sigv4

SKEW = 15 * 60
"""Seconds by which a client's clock may be off."""
MAX_EXPIRY = 604800
ABSENT, MALFORMED, UNKNOWN_KEY, TOKEN, SKEWED, WRONG, EXPIRED, QUERY, UNSIGNED_HEADERS, NO_DIGEST = (
    "absent",
    "malformed",
    "unknown",
    "token",
    "skewed",
    "wrong",
    "expired",
    "query",
    "unsigned headers",
    "no digest",
)
"""Why a request is turned away."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=([^/, ]+)/(\d{8}/[^/, ]+/[^/, ]+/aws4_request), *"
    r"SignedHeaders=([^, ]+), *Signature=([0-9a-f]{64})"
)
_SUBRESOURCES = frozenset(
    (
        "acl",
        "cors",
        "delete",
        "lifecycle",
        "location",
        "logging",
        "notification",
        "partNumber",
        "policy",
        "requestPayment",
        "tagging",
        "torrent",
        "uploadId",
        "uploads",
        "versionId",
        "versioning",
        "versions",
        "website",
        "response-content-type",
        "response-content-language",
        "response-expires",
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
    )
)
"""Of the query, what version 2 signs."""


class SignatureRefused(Exception):
    """A request that nobody with a key has signed. `reason`: one of the constants above."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason} {message}".strip())
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Claim:
    """What a request says of itself. `payload`: the digest, or the word in its place, that is signed; None where the
    service signs the body's digest without a header. `query`: of a presigned URL, without the signature. `verified`:
    it is proved already."""

    key: Key
    service: str
    stamp: str
    scope: str
    names: Sequence[str]
    signature: str
    payload: Optional[str]
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    verified: bool = False

    @property
    def signing_key(self) -> bytes:
        """The key with which chunks of the body are signed too."""
        return sigv4.derive_signing_key(self.key.secret, self.scope)

    def verify(self, payload_digest: str) -> None:
        """Raise SignatureRefused WRONG unless the signature is right.

        `payload_digest`: digest of the body, or what stands for it.
        """
        if self.verified:
            return
        key = self.signing_key
        for path in dict.fromkeys(_possible_signed_paths(self.path)):
            for query in dict.fromkeys(_possible_signed_queries(self.query)):
                canonical = sigv4.canonical_request(self.method, path, query, self.headers, self.names, payload_digest)
                expected = sigv4.compute_signature(
                    key, sigv4.ALGORITHM, self.stamp, self.scope, hashlib.sha256(canonical).hexdigest()
                )
                if hmac.compare_digest(expected, self.signature):
                    return
        raise SignatureRefused(WRONG)


def parse_claim(keys: Mapping[str, Key], method: str, target: str, headers: Mapping[str, str], now: float) -> Claim:
    """Return what a request claims. Raises SignatureRefused.

    `target`: of the request line; `headers`: lower-case names.
    """
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    if "X-Amz-Signature" in query or "X-Amz-Expires" in query:
        return _parse_presigned_claim(keys, method, url.path, url.query, query, headers, now)
    if "Signature" in query and "authorization" not in headers:
        return _verify_version_2_claim(keys, method, url.path, query, headers, now)
    authorization = headers.get("authorization")
    if authorization is None:
        raise SignatureRefused(ABSENT)
    match = _AUTHORIZATION.fullmatch(authorization.strip())
    if match is None:
        raise SignatureRefused(MALFORMED)
    access, scope, names, signature = match.groups()
    key = _find_key_and_require_session_token(keys, access, headers.get("x-amz-security-token", ""))
    service, stamp = scope.split("/")[2], headers.get("x-amz-date", "")
    if abs(_parse_timestamp(stamp, scope) - now) > SKEW:
        raise SignatureRefused(SKEWED, stamp)
    payload = headers.get("x-amz-content-sha256")
    if payload is None and service == "s3":
        raise SignatureRefused(NO_DIGEST)
    return Claim(
        key,
        service,
        stamp,
        scope,
        _parse_and_validate_signed_header_names(names, headers),
        signature,
        payload,
        method,
        url.path,
        url.query,
        headers,
    )


def _find_key_and_require_session_token(keys: Mapping[str, Key], access_key_id: str, token: str) -> Key:
    key = keys.get(access_key_id)
    if key is None:
        raise SignatureRefused(UNKNOWN_KEY, access_key_id)
    if not hmac.compare_digest(key.token.encode(), token.encode()):
        raise SignatureRefused(TOKEN)
    return key


def _parse_timestamp(stamp: str, scope: str) -> float:
    """Unix seconds of an x-amz-date that is of the scope's day. Raises SignatureRefused."""
    try:
        moment = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise SignatureRefused(MALFORMED) from None
    if not scope.startswith(f"{stamp[:8]}/"):
        raise SignatureRefused(MALFORMED)
    return moment


def _parse_and_validate_signed_header_names(listed: str, headers: Mapping[str, str]) -> Sequence[str]:
    """Return the names of the signed headers. Raises SignatureRefused where one that must be signed is not."""
    names = listed.split(";")
    if "host" not in names or names != sorted(set(names)) or any(name not in headers for name in names):
        raise SignatureRefused(MALFORMED if "host" not in names else WRONG)
    if any(name.startswith("x-amz-") and name not in names for name in headers):
        raise SignatureRefused(UNSIGNED_HEADERS)
    return names


def _parse_presigned_claim(
    keys: Mapping[str, Key],
    method: str,
    path: str,
    raw: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    now: float,
) -> Claim:
    access, _, scope = query.get("X-Amz-Credential", "").partition("/")
    try:
        signed, lasts = (
            _parse_timestamp(query.get("X-Amz-Date", ""), query.get("X-Amz-Date", "")[:8] + "/"),
            int(query["X-Amz-Expires"]),
        )
    except (KeyError, ValueError, SignatureRefused):
        raise SignatureRefused(
            QUERY, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\" and X-Amz-Expires a number"
        ) from None
    if not 0 <= lasts <= MAX_EXPIRY:
        raise SignatureRefused(
            QUERY,
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires "
            f"must be less than {MAX_EXPIRY} seconds",
        )
    if signed - now > SKEW:
        raise SignatureRefused(SKEWED, query["X-Amz-Date"])
    if now > signed + lasts:
        raise SignatureRefused(EXPIRED)
    form = _AUTHORIZATION.fullmatch(
        f"{query.get('X-Amz-Algorithm')} Credential={access}/{scope}, "
        f"SignedHeaders={query.get('X-Amz-SignedHeaders')}, "
        f"Signature={query.get('X-Amz-Signature')}"
    )
    if form is None or not scope.startswith(query["X-Amz-Date"][:8] + "/"):
        raise SignatureRefused(
            QUERY, "X-Amz-Algorithm, X-Amz-Credential, X-Amz-SignedHeaders or X-Amz-Signature is wrong"
        )
    key = _find_key_and_require_session_token(keys, access, query.get("X-Amz-Security-Token", ""))
    rest = "&".join(part for part in raw.split("&") if not part.startswith("X-Amz-Signature="))
    return Claim(
        key,
        scope.split("/")[2],
        query["X-Amz-Date"],
        scope,
        _parse_and_validate_signed_header_names(form.group(3), headers),
        form.group(4),
        headers.get("x-amz-content-sha256", sigv4.UNSIGNED),
        method,
        path,
        rest,
        headers,
    )


def _verify_version_2_claim(
    keys: Mapping[str, Key], method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], now: float
) -> Claim:
    """A URL presigned as S3 took it before version 4, and still takes it in old regions. Raises SignatureRefused."""
    expires = query.get("Expires", "")
    if not (expires.isascii() and expires.isdigit()):
        raise SignatureRefused(ABSENT)
    if now > int(expires):
        raise SignatureRefused(EXPIRED)
    key = _find_key_and_require_session_token(
        keys, query.get("AWSAccessKeyId", ""), query.get("x-amz-security-token", "")
    )
    amz = {name: value.strip() for name, value in headers.items() if name.startswith("x-amz-")}
    if key.token:
        amz["x-amz-security-token"] = key.token
    chosen = sorted((name, value) for name, value in query.items() if name in _SUBRESOURCES)
    subresources = "&".join(name + (f"={value}" if value else "") for name, value in chosen)
    if subresources:
        resource = f"{path}?{subresources}"
    else:
        resource = path
    text = "\n".join(
        [
            method,
            headers.get("content-md5", ""),
            headers.get("content-type", ""),
            expires,
            *(f"{name}:{amz[name]}" for name in sorted(amz)),
            resource,
        ]
    )
    expected = base64.b64encode(hmac.new(key.secret.encode(), text.encode("latin-1"), hashlib.sha1).digest()).decode()
    if not hmac.compare_digest(expected.encode(), query["Signature"].encode()):
        raise SignatureRefused(WRONG)
    return Claim(key, "s3", "", "", (), "", sigv4.UNSIGNED, method, path, "", headers, verified=True)


def _possible_signed_paths(path: str) -> Iterator[str]:
    """Yield the forms in which clients sign a path: as they sent it, spelt as the standard says, quoted once more."""
    raw = path.encode("latin-1")
    yield path or "/"
    yield quote(unquote_to_bytes(raw), safe="/-_.~") or "/"
    yield quote(raw, safe="/-_.~")


def _possible_signed_queries(query: str) -> Iterator[str]:
    """Yield the forms in which clients sign a query, its parts in order: as sent, and quoted anew."""
    parts = [part.partition("=")[::2] for part in query.split("&") if part]
    yield "&".join(f"{name}={value}" for name, value in sorted(parts))
    spelt = [tuple(quote(unquote_to_bytes(word.encode("latin-1")), safe="-_.~") for word in part) for part in parts]
    yield "&".join(f"{name}={value}" for name, value in sorted(spelt))
