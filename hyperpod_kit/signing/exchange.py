"""One HTTP request with a deadline for each silence, no redirects, and errors that never quote what was answered.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any, List, Mapping, NamedTuple, Optional

SILENCE = 5.0
"""Seconds without a byte."""

LARGEST = 1 << 20
"""Bytes: a secret has 64 KiB at most."""


class HttpResponse(NamedTuple):
    """`status`: 0 when nobody answered, and then `body` says why."""

    status: int
    body: bytes

    def __repr__(self) -> str:
        return f"Answer({self.status}, …)"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """A signed request goes where it was signed for, and nowhere else."""


def send_http_request_or_status_zero(
    method: str, url: str, headers: Mapping[str, str], body: Optional[bytes] = None, *, proxies: bool = True
) -> HttpResponse:
    """Send one HTTP request and return its response; never raises.

    `proxies`: whether the environment's may be used (never for the metadata service).
    """
    handlers: List[urllib.request.BaseHandler] = [_NoRedirect()]
    if not proxies:
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, dict(headers), method=method)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SILENCE) as response:
            return HttpResponse(response.status, response.read(LARGEST))
    except urllib.error.HTTPError as err:
        with err:
            return HttpResponse(err.code, err.read(LARGEST))
    except (OSError, http.client.HTTPException) as err:
        reason = getattr(err, "reason", err)
        return HttpResponse(0, str(reason or type(err).__name__).encode())
