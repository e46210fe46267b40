"""Connections to S3 that are used again, and bodies that are read from them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import importlib.util
import os
import socket
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from hyperpod_kit.system.readable import wait_until_readable

_CONNECT = 10.0
"""Seconds for a connection to be made."""

_KEPT = 32
"""Idle connections."""


UNKNOWN_LENGTH = 1 << 62
"""Bytes that are left of an answer that does not say."""


class S3Broken(OSError):
    """What came is no answer, or not all of one."""


class S3Timeout(OSError):
    """Nothing came for longer than S3 needs."""


class ResponseBody:
    """The body of an answer. All of it read, its connection serves the next request; else that is closed.

    `remaining`: bytes that are still to come.
    """

    def __init__(
        self, pool: Connections, origin: Tuple[str, str], connection: Any, response: Any, remaining: int
    ) -> None:
        self._pool, self._origin, self._connection, self._response = pool, origin, connection, response
        self.remaining = remaining
        self._crc: Optional[int] = None
        self._expected_crc = ""

    def expect_crc32(self, crc32: str) -> None:
        """Compare the body with this CRC-32, as S3's headers have it, at its end; an object that came in parts
        ("…-3") has none."""
        if crc32 and "-" not in crc32:
            self._crc, self._expected_crc = 0, crc32

    def read(self, most: int = -1) -> bytes:
        """The next bytes, as many as `most` unless fewer are left; b"" at the end. Raises OSError."""
        if self._response.chunked:
            return self._read_chunked(most)
        if most < 0:
            count = self.remaining
        else:
            count = min(most, self.remaining)
        if not count:
            return b""
        try:
            data: bytes = self._response.read(count)
        except (socket.timeout, TimeoutError) as err:
            raise S3Timeout(
                f"no data for {self._connection.timeout:g} s, {self.remaining} bytes were still to come"
            ) from err
        except http.client.HTTPException as err:
            raise S3Broken(f"{type(err).__name__} with {self.remaining} bytes still to come") from None
        if len(data) < count:
            raise S3Broken(f"the connection ended with {self.remaining - len(data)} bytes still to come")
        self.remaining -= len(data)
        if self._crc is not None:
            self._crc = binascii.crc32(data, self._crc)
            if not self.remaining and base64.b64encode(self._crc.to_bytes(4, "big")).decode() != self._expected_crc:
                raise S3Broken(f"its CRC-32 is not {self._expected_crc}, the value that the service sent")
        return data

    def _read_chunked(self, most: int) -> bytes:
        """Read a body whose end shows by itself (chunked): S3 sends listings and the end of uploads so."""
        try:
            data: bytes = self._response.read(most if most >= 0 else None)  # all of them, or the end has come
        except (socket.timeout, TimeoutError) as err:
            raise S3Timeout(f"no data for {self._connection.timeout:g} s") from err
        except http.client.HTTPException as err:
            raise S3Broken(f"{type(err).__name__}: {err}") from None
        if self._response.isclosed():
            self.remaining = 0
        else:
            self.remaining = self.remaining
        return data

    def close(self) -> None:
        """Return the connection to the pool when all was read, else close it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.remaining or self._response.will_close:
            connection.close()
        else:
            self._response.close()
            self._pool.give_back(self._origin, connection)

    def __enter__(self) -> ResponseBody:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions of Linux have the certificates of authorities."""


def _load_usual_certificates(context: Any) -> None:
    """Load the machine's certificates, or those that botocore brings: an interpreter that was built elsewhere looks
    for them where they are not."""
    paths = list(_CERTIFICATES)
    botocore = importlib.util.find_spec("botocore")
    if botocore is not None and botocore.origin:
        paths.append(os.path.join(os.path.dirname(botocore.origin), "cacert.pem"))
    for path in paths:
        if os.path.exists(path):
            context.load_verify_locations(path)
            return


class Connections:
    """Safe for threads. `silence`: seconds without a byte after which an answer is given up."""

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._lock = threading.Lock()
        self._idle: Dict[Tuple[str, str], List[Any]] = {}
        self._pid = os.getpid()
        self._context: Any = None

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: Optional[bytes]
    ) -> Tuple[int, Dict[str, str], ResponseBody]:
        """Send a request and return (status, headers in lower case, the body). Raise OSError."""
        parts = urlsplit(url)
        origin = (parts.scheme, parts.netloc)
        connection = self._take_or_connect(origin)
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            length = self._body_length(method, response)
        except BaseException as err:
            connection.close()
            self._close_idle(origin)
            if isinstance(err, (socket.timeout, TimeoutError)):
                raise S3Timeout(f"no answer from {parts.netloc} within {connection.timeout:g} s") from None
            if isinstance(err, http.client.HTTPException):
                raise S3Broken(f"{type(err).__name__}: {err}") from None
            raise
        return response.status, response_headers, ResponseBody(self, origin, connection, response, length)

    def give_back(self, origin: Tuple[str, str], connection: Any) -> None:
        """Keep the connection for the next request, or close it when enough are kept."""
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            if len(idle) < _KEPT and self._pid == os.getpid():
                return idle.append(connection)
        connection.close()

    def _take_or_connect(self, origin: Tuple[str, str]) -> Any:
        with self._lock:
            if self._pid != os.getpid():
                # A child of fork(2) must not speak on its parent's connections.
                self._pid, self._idle = os.getpid(), {}
            idle = self._idle.get(origin, [])
            while idle:
                connection = idle.pop()
                if not wait_until_readable([connection.sock.fileno()], 0.0):
                    return connection
                connection.close()  # nothing was asked, so what can be read is its end
        scheme, netloc = origin
        if scheme != "https":
            connection = http.client.HTTPConnection(netloc, timeout=_CONNECT)
        else:
            connection = http.client.HTTPSConnection(netloc, timeout=_CONNECT, context=self._cached_tls_context())
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.timeout = self._silence
        connection.sock.settimeout(self._silence)
        return connection

    def _close_idle(self, origin: Tuple[str, str]) -> None:
        """Close the idle connections of an origin: where one was dead, others are too."""
        with self._lock:
            idle = self._idle.pop(origin, [])
        for connection in idle:
            connection.close()

    def _cached_tls_context(self) -> Any:
        import ssl  # 10 ms that who speaks to a stand-in does not need

        if self._context is None:
            named = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
            context = ssl.create_default_context(cafile=named or None)
            if not named and ssl.get_default_verify_paths().cafile is None:
                _load_usual_certificates(context)
            self._context = context
        return self._context

    @staticmethod
    def _body_length(method: str, response: Any) -> int:
        """Return the bytes of the body. Raise S3Broken when the answer does not say: one that ends early must be
        noticed."""
        if method == "HEAD" or response.status in (204, 304):
            return 0
        if response.length is not None:
            return int(response.length)
        if response.chunked:
            return UNKNOWN_LENGTH
        raise S3Broken("an answer without a length")
