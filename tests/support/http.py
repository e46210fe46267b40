"""Servers on loopback that answer as a test wants."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Iterator, Tuple, Type


class Responder(BaseHTTPRequestHandler):
    """A handler that is quiet and answers whole."""

    def body(self) -> bytes:
        """What the request brought."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """`headers`: their names with _ for -."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(handler: Type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL, until the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=60)


@contextmanager
def aws_json(answer: Callable[[str, Dict[str, Any]], Tuple[int, Dict[str, Any]]]) -> Iterator[str]:
    """An AWS service of the JSON protocol: `answer(operation, request)` gives a status and an object."""

    class Service(Responder):
        def do_POST(self) -> None:
            status, found = answer(self.headers["X-Amz-Target"].split(".")[1], json.loads(self.body()))
            self.answer(status, json.dumps(found).encode(), Content_Type="application/x-amz-json-1.1")

    with served(Service) as url:
        yield url
