"""AWS Signature Version 4, and the credentials that it is made with.

Source: IAM user guide, "Create a signed AWS API request".
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Dict, Mapping, NamedTuple
from urllib.parse import urlsplit

PAYLOAD = "x-amz-content-sha256"
"""The header that S3 wants the body's digest in besides."""


class Credentials(NamedTuple):
    """Printing them shows nothing. `expires`: Unix seconds, 0 when nobody said."""

    access_key: str
    secret_key: str
    token: str = ""
    expires: float = 0.0

    def __repr__(self) -> str:
        return "Credentials(…)"


def sign_request_headers(
    credentials: Credentials,
    service: str,
    region: str,
    method: str,
    url: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    now: float,
) -> Dict[str, str]:
    """Return the headers of a request, those that sign it included.

    `url`: path and query as they are sent, the parameters of the query sorted and each with its "=".
    `headers`: lower-case names. `payload_sha256`: SHA-256 of the body in hexadecimal, or a word that S3
    takes for it. `now`: Unix seconds.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    parts = urlsplit(url)
    full = {**headers, "host": parts.netloc, "x-amz-date": stamp}
    if credentials.token:
        full["x-amz-security-token"] = credentials.token
    names = sorted(full)
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            parts.query,
            *(f"{name}:{full[name].strip()}" for name in names),
            "",
            ";".join(names),
            payload_sha256,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + credentials.secret_key.encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    full["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return full
