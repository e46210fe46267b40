"""Every request of every stand-in comes in here: framed in one way only, and signed by somebody with a key.

Whoever has not shown a signature yet is a stranger. Strangers get little: one of a few places, a moment, no body read.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Mapping, Optional

from hyperpod_rehearsal.credentials import signature
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.credentials.signature import Claim, SignatureRefused
from hyperpod_rehearsal.endpoint import refusals
from hyperpod_rehearsal.endpoint.unsupported_services import HttpResponse
from hyperpod_rehearsal.s3.body import DRAIN_LIMIT, RequestBody
from hyperpod_rehearsal.s3.body_signature import BodySignature
from hyperpod_rehearsal.s3.errors import S3Error

MAX_UNAUTHENTICATED = 128
"""Connections without a signature that are kept; one more, and the oldest of them is closed."""
PATIENCE = 10.0
"""Seconds that a stranger may be silent."""
IDLE = 120.0
"""Seconds that a known client may be."""
LINGER = 2.0
"""Seconds for which the end of what a stranger sends is waited for, after each piece of it."""
MAX_BODY = 4 << 20
"""Bytes of a body that must be read before its signature can be looked at."""


class FrontDoor(BaseHTTPRequestHandler):
    """Set `keys` in a subclass: without it nobody is let in. `claim`: of the request at hand, proved."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    keys: Mapping[str, Key] = {}
    claim: Optional[Claim] = None
    body_signature: Optional[BodySignature] = None
    read_body: Optional[bytes] = None

    def handle_expect_100(self) -> bool:
        """Return True without answering: `100 Continue` is sent in `_authenticate`, to authenticated clients only."""
        return True

    def parse_request(self) -> bool:
        """Parse and authenticate a request. Returns False, after a response, for one that is not to be served."""
        self.claim, self.body_signature, self.read_body = None, None, None
        if not super().parse_request():
            self.close_connection = True
            return False
        wrong = _framing_error(self.headers.items(), bool(getattr(self.headers, "defects", ())))
        if wrong:
            self.close_connection = True
            self.send_error(400, wrong)
            self._shut_down_writing_and_drain_input()
            return False
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._authenticate(headers)
        except SignatureRefused as err:
            self.close_connection = True
            self.send_http_response(refusals.signature_refusal_response(err, headers, self.path))
            self._shut_down_writing_and_drain_input()
            return False
        except (S3Error, OSError):
            self.close_connection = True
            return False
        self.connection.settimeout(IDLE)
        if isinstance(self.server, Listener):
            self.server.mark_authenticated(self.connection)
        return True

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        """Raises SignatureRefused, S3Error, OSError."""
        claim = signature.parse_claim(self.keys, self.command, self.path, headers, time.time())
        if headers.get("expect", "").lower() == "100-continue" and self.request_version >= "HTTP/1.1":
            self.send_response_only(100)
            self.end_headers()
        if claim.payload is not None:
            claim.verify(claim.payload)
            if claim.service == "s3":
                self.body_signature = BodySignature(claim)
            else:
                self.body_signature = None
        if claim.payload is None or self.body_signature is None:
            self.read_body = RequestBody(self.rfile, headers).read(MAX_BODY)
            digest = hashlib.sha256(self.read_body).hexdigest()
            if claim.payload is None:
                claim.verify(digest)
            elif claim.payload not in (digest, "UNSIGNED-PAYLOAD"):
                raise SignatureRefused(signature.WRONG)
        self.claim = claim

    def _shut_down_writing_and_drain_input(self) -> None:
        """Shut down writing and discard what the client still sends.

        A connection that is closed over unread bytes is reset, and the response is lost with it.
        """
        self.wfile.flush()
        self.connection.settimeout(LINGER)
        self.connection.shutdown(socket.SHUT_WR)
        remaining = DRAIN_LIMIT
        while remaining > 0:
            count = len(self.connection.recv(1 << 16))
            if not count:
                return
            remaining -= count

    def is_admin_or_send_refusal(self, operation: str) -> bool:
        """Return whether the request is signed with the admin's key; send a refusal of `operation` otherwise."""
        if self.claim is not None and not self.claim.key.node:
            return True
        self.send_http_response(
            refusals.access_denied_response({name.lower(): value for name, value in self.headers.items()}, operation)
        )
        return False

    def send_http_response(self, response: HttpResponse) -> None:
        """Send status, headers and body; of a HEAD request the first two."""
        status, headers, body = response
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _framing_error(headers: Any, has_defects: bool) -> str:
    """Return why the request's framing is ambiguous or malformed, "" when it is well-formed."""
    values: Dict[str, str] = {}
    for name, value in headers:
        if name.lower() in values:
            return "a header is there twice"
        values[name.lower()] = value
    length, coding = values.get("content-length"), values.get("transfer-encoding")
    if has_defects:
        return "a header is malformed"
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        return "Transfer-Encoding must be chunked, and alone"
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 20):
        return "Content-Length is not a number"
    return ""


class Listener(ThreadingHTTPServer):
    """Threads for those with a signature, and a few places for those who have not shown one."""

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    max_unauthenticated = MAX_UNAUTHENTICATED

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._guard = threading.Lock()
        self._unauthenticated: Dict[int, socket.socket] = {}
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._unauthenticated[id(request)] = request
            if len(self._unauthenticated) > self.max_unauthenticated:
                oldest = self._unauthenticated.pop(next(iter(self._unauthenticated)))
                # Not closed: its thread reads the end of it, and closes it itself.
                _shut_down_socket(oldest)
        super().process_request(request, client_address)

    def mark_authenticated(self, request: Any) -> None:
        """Remove a connection from those that are closed first when too many are unauthenticated."""
        with self._guard:
            self._unauthenticated.pop(id(request), None)

    def shutdown_request(self, request: Any) -> None:
        self.mark_authenticated(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news for the daemon's log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _shut_down_socket(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
