"""moto behind a socket, so that programs of their own find it: each request goes where moto puts one of boto3's."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import BotocoreStubber

_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/aws4_request")
"""Region and service, as the client signed them."""

_HOSTS = {"sagemaker": "api.sagemaker"}
"""Where a service's host is not its name."""


class MotoEndpoint:
    """A context manager. moto must be on; `url` is for AWS_ENDPOINT_URL."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MotoEndpoint:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=60)


class _Handler(BaseHTTPRequestHandler):
    """One request; one at a time, because moto's backends have no locks."""

    turn = threading.Lock()

    def do_GET(self) -> None:
        signed = _SCOPE.search(self.headers.get("Authorization", ""))
        if signed is None:
            self.send_error(403, "not signed")
            return
        region, service = signed.groups()
        host = f"{_HOSTS.get(service, service)}.{region}.amazonaws.com"
        headers = HTTPHeaders()
        for name, value in self.headers.items():
            if name.lower() != "host":
                headers[name] = value
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = AWSPreparedRequest(self.command, f"https://{host}{self.path}", headers, body, False)
        with self.turn:
            answer = BotocoreStubber().process_request(request)
        assert answer is not None, f"moto knows nothing of {host}"
        status, told, content = answer
        data = content.encode() if isinstance(content, str) else bytes(content)
        self.send_response(status)
        for name, value in told.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, str(value))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None: ...
