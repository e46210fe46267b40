"""AWS Signature Version 4: what a client signs, and what the endpoint computes again to compare.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
TERMINATOR = "aws4_request"


class AccessKey(NamedTuple):
    """Access key, secret key, session token."""

    access_key: str
    secret_key: str
    token: Optional[str] = None


def canonical_request(
    method: str, path: str, query: str, headers: Mapping[str, str], names: Sequence[str], payload: str
) -> bytes:
    """Return the canonical request that is signed.

    `headers`: lower-case names; characters above ASCII are bytes read as Latin-1.
    """
    lines = [
        method,
        path,
        query,
        *(f"{name}:{' '.join(headers[name].split())}" for name in names),
        "",
        ";".join(names),
        payload,
    ]
    return "\n".join(lines).encode("latin-1")


def derive_signing_key(secret_key: str, scope: str) -> bytes:
    """The key of one day, region and service. `scope`: DAY/REGION/SERVICE/aws4_request."""
    key = b"AWS4" + secret_key.encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return key


def compute_signature(key: bytes, *lines: str) -> str:
    """Return the hexadecimal signature of a string to sign, given line by line."""
    return hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def sign_request_headers(
    credentials: AccessKey,
    region: str,
    method: str,
    path: str,
    query: str,
    headers: Dict[str, str],
    now: Optional[datetime] = None,
    service: str = "s3",
) -> Dict[str, str]:
    """The headers with those that sign them; `host` and `x-amz-content-sha256` must be among them, lower case."""
    moment = now or datetime.now(timezone.utc)
    day, stamp = moment.strftime("%Y%m%d"), moment.strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "x-amz-date": stamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = sorted(name for name in signed if name != "content-length")
    canonical = canonical_request(method, path, query, signed, names, signed["x-amz-content-sha256"])
    scope = f"{day}/{region}/{service}/{TERMINATOR}"
    made = compute_signature(
        derive_signing_key(credentials.secret_key, scope),
        ALGORITHM,
        stamp,
        scope,
        hashlib.sha256(canonical).hexdigest(),
    )
    signed["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={made}"
    )
    return signed
