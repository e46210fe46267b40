"""Requests that no client of AWS's would send, signed as one would."""

from __future__ import annotations

import hashlib
from typing import Dict, Optional
from urllib.parse import urlsplit

from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import AccessKey, sign_request_headers

ME = AccessKey("test", "secret")


def signed(
    url: str,
    method: str,
    headers: Optional[Dict[str, str]] = None,
    body: bytes = b"",
    *,
    service: str = "s3",
    who: AccessKey = ME,
) -> Dict[str, str]:
    """`headers`, lower-case names, with those that sign a request to `url`."""
    parts = urlsplit(url)
    complete_headers = {
        "host": parts.netloc,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        **(headers or {}),
    }
    return sign_request_headers(
        who, "us-east-1", method, parts.path or "/", parts.query, complete_headers, service=service
    )
