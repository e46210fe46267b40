"""AWS Signature Version 4 for S3 requests."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone
from typing import Dict, NamedTuple, Optional

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"


class Credentials(NamedTuple):
    """Access key, secret key, session token."""

    access_key: str
    secret_key: str
    token: Optional[str] = None


def sign(credentials: Credentials, region: str, method: str, path: str, query: str, headers: Dict[str, str],
         now: Optional[datetime] = None) -> Dict[str, str]:
    """The headers with those that sign them; `host` and `x-amz-content-sha256` must be among them, lower case."""
    moment = now or datetime.now(timezone.utc)
    day, stamp = moment.strftime("%Y%m%d"), moment.strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "x-amz-date": stamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = sorted(name for name in signed if name != "content-length")
    canonical = "\n".join([
        method, path, query, "".join(f"{name}:{signed[name].strip()}\n" for name in names), ";".join(names),
        signed["x-amz-content-sha256"]])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + credentials.secret_key.encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    signed["authorization"] = (f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
                               f"SignedHeaders={';'.join(names)}, Signature={signature}")
    return signed
