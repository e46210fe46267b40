"""Presigned URLs end: the one thing of a signature that is looked at here."""

from __future__ import annotations

import calendar
import time
from typing import Mapping

from hyperpod_kit.rehearsal.s3.errors import S3Error

LONGEST = 604800


def check_not_expired(query: Mapping[str, str], now: float) -> None:
    """Raises S3Error for a URL whose time, of signature version 4 or 2, is over or cannot be read."""
    if "X-Amz-Expires" in query:
        try:
            signed = calendar.timegm(time.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
            lasts = int(query["X-Amz-Expires"])
        except (KeyError, ValueError):
            raise S3Error(400, "AuthorizationQueryParametersError",
                          "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\" and X-Amz-Expires "
                          "a number") from None
        if not 0 <= lasts <= LONGEST:
            raise S3Error(400, "AuthorizationQueryParametersError",
                          f"X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must "
                          f"be less than {LONGEST} seconds")
        ends = signed + lasts
    elif "Signature" in query and query.get("Expires", "").isdigit():
        ends = int(query["Expires"])
    else:
        return
    if now > ends:
        raise S3Error(403, "AccessDenied", "Request has expired")
