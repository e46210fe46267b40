"""AWS Signature Version 4 for a JSON request, and the credentials that it is made with.

Source: IAM user guide, "Create a signed AWS API request".
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Dict, NamedTuple
from urllib.parse import urlsplit


class Credentials(NamedTuple):
    """Of the node's role. Printing them shows nothing."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"


def signed(
    credentials: Credentials, service: str, region: str, url: str, headers: Dict[str, str], body: bytes, now: float
) -> Dict[str, str]:
    """The headers of a POST to `url`, those that sign it included. `headers`: lower-case names; `now`: Unix seconds."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    parts = urlsplit(url)
    full = {**headers, "host": parts.netloc, "x-amz-date": stamp}
    if credentials.token:
        full["x-amz-security-token"] = credentials.token
    names = sorted(full)
    canonical = "\n".join(
        [
            "POST",
            parts.path or "/",
            "",
            *(f"{name}:{full[name].strip()}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
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
