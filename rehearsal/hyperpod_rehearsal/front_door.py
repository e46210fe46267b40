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

from hyperpod_rehearsal import refusals, signature
from hyperpod_rehearsal.keys import Key
from hyperpod_rehearsal.other_services import Answer
from hyperpod_rehearsal.s3.body import DRAIN_LIMIT, RequestBody
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.seal import BodySeal
from hyperpod_rehearsal.signature import Claim, SignatureRefused

MOST_STRANGERS = 128
"""Connections without a signature that are kept; one more, and the oldest of them is closed."""
PATIENCE = 10.0
"""Seconds that a stranger may be silent."""
IDLE = 120.0
"""Seconds that a known client may be."""
LINGER = 2.0
"""Seconds for which the end of what a stranger sends is waited for, after each piece of it."""
MOST_BODY = 4 << 20
"""Bytes of a body that must be read before its signature can be looked at."""


class FrontDoor(BaseHTTPRequestHandler):
    """Set `keys` in a subclass: without it nobody is let in. `claim`: of the request at hand, proved."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    keys: Mapping[str, Key] = {}
    claim: Optional[Claim] = None
    seal: Optional[BodySeal] = None
    read_body: Optional[bytes] = None

    def handle_expect_100(self) -> bool:
        """Said only to those who are let in."""
        return True

    def parse_request(self) -> bool:
        """False, after an answer, for what is not to be served."""
        self.claim, self.seal, self.read_body = None, None, None
        if not super().parse_request():
            self.close_connection = True
            return False
        wrong = _framing(self.headers.items(), bool(getattr(self.headers, "defects", ())))
        if wrong:
            self.close_connection = True
            self.send_error(400, wrong)
            self._linger()
            return False
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._admit(headers)
        except SignatureRefused as err:
            self.close_connection = True
            self.answer(refusals.refusal(err, headers, self.path))
            self._linger()
            return False
        except (S3Error, OSError):
            self.close_connection = True
            return False
        self.connection.settimeout(IDLE)
        if isinstance(self.server, Listener):
            self.server.is_known(self.connection)
        return True

    def _admit(self, headers: Mapping[str, str]) -> None:
        """Raises SignatureRefused, S3Error, OSError."""
        claim = signature.claim(self.keys, self.command, self.path, headers, time.time())
        if headers.get("expect", "").lower() == "100-continue" and self.request_version >= "HTTP/1.1":
            self.send_response_only(100)
            self.end_headers()
        if claim.payload is not None:
            claim.verify(claim.payload)
            self.seal = BodySeal(claim) if claim.service == "s3" else None
        if claim.payload is None or self.seal is None:
            self.read_body = RequestBody(self.rfile, headers).read(MOST_BODY)
            digest = hashlib.sha256(self.read_body).hexdigest()
            if claim.payload is None:
                claim.verify(digest)
            elif claim.payload not in (digest, "UNSIGNED-PAYLOAD"):
                raise SignatureRefused(signature.WRONG)
        self.claim = claim

    def _linger(self) -> None:
        """Forget what still comes: a connection closed over unread bytes is reset, and the answer lost with it."""
        self.wfile.flush()
        self.connection.settimeout(LINGER)
        self.connection.shutdown(socket.SHUT_WR)
        left = DRAIN_LIMIT
        while left > 0:
            forgotten = len(self.connection.recv(1 << 16))
            if not forgotten:
                return
            left -= forgotten

    def allowed(self, what: str) -> bool:
        """Whether the admin asks. The nodes' role gets an answer, with `what` it may not."""
        if self.claim is not None and not self.claim.key.node:
            return True
        self.answer(refusals.not_allowed({name.lower(): value for name, value in self.headers.items()}, what))
        return False

    def answer(self, answer: Answer) -> None:
        """Send status, headers and body; of a HEAD request the first two."""
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _framing(headers: Any, defects: bool) -> str:
    """Why nobody could say where this request ends, or what it says; "" when all is well."""
    seen: Dict[str, str] = {}
    for name, value in headers:
        if name.lower() in seen:
            return "a header is there twice"
        seen[name.lower()] = value
    length, coding = seen.get("content-length"), seen.get("transfer-encoding")
    if defects:
        return "a header is malformed"
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        return "Transfer-Encoding must be chunked, and alone"
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 20):
        return "Content-Length is no number"
    return ""


class Listener(ThreadingHTTPServer):
    """Threads for those with a signature, and a few places for those who have not shown one."""

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    most_strangers = MOST_STRANGERS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._guard = threading.Lock()
        self._strangers: Dict[int, socket.socket] = {}
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._strangers[id(request)] = request
            if len(self._strangers) > self.most_strangers:
                oldest = self._strangers.pop(next(iter(self._strangers)))
                # Not closed: its thread reads the end of it, and closes it itself.
                _shut(oldest)
        super().process_request(request, client_address)

    def is_known(self, request: Any) -> None:
        """A connection has shown a signature."""
        with self._guard:
            self._strangers.pop(id(request), None)

    def shutdown_request(self, request: Any) -> None:
        self.is_known(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news for the daemon's log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _shut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
