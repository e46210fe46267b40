"""An HTTP server of packages that behaves as it is told: well, late, by drops, or not at all."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List


class Answer(BaseHTTPRequestHandler):
    server: ThreadingHTTPServer

    def do_GET(self) -> None:
        owner: PackageServer = self.server.owner  # type: ignore[attr-defined]
        owner.asked.append(self.path)
        behaviour = owner.behaviours.pop(0) if owner.behaviours else whole
        # A client that has gone is what some tests are about.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            behaviour(self, owner.files.get(self.path))

    def log_message(self, format: str, *args: Any) -> None:
        pass


Behaviour = Callable[[Answer, Any], None]


def whole(answer: Answer, data: Any) -> None:
    if data is None:
        answer.send_error(404)
        return
    answer.send_response(200)
    answer.send_header("Content-Length", str(len(data)))
    answer.end_headers()
    answer.wfile.write(data)


def busy(answer: Answer, data: Any) -> None:
    answer.send_error(503)


def cut(answer: Answer, data: Any) -> None:
    """Half of what was announced."""
    answer.send_response(200)
    answer.send_header("Content-Length", str(len(data)))
    answer.end_headers()
    answer.wfile.write(data[: len(data) // 2])


def trickle(answer: Answer, data: Any) -> None:
    """A byte every tenth of a second: no single wait is long, all together never end."""
    answer.send_response(200)
    answer.send_header("Content-Length", str(len(data)))
    answer.end_headers()
    for byte in data:
        answer.wfile.write(bytes([byte]))
        if answer.server.owner.closing.wait(0.1):  # type: ignore[attr-defined]
            return


class PackageServer:
    """`files`: path -> content; `behaviours`: for the next requests, one each; `asked`: what was requested."""

    def __init__(self) -> None:
        self.files: Dict[str, bytes] = {}
        self.behaviours: List[Behaviour] = []
        self.asked: List[str] = []
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._http.daemon_threads = True
        self._http.owner = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def offer(self, path: str, data: bytes) -> str:
        """URL of `data`."""
        self.files[path] = data
        return f"http://127.0.0.1:{self._http.server_port}{path}"

    def __enter__(self) -> PackageServer:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)
