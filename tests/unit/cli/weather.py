"""AWS on a bad day: the rehearsal's endpoint with something in front that turns calls away, or is not there at all."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from hyperpod_rehearsal import server
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets

ANSWERS = {
    "throttle": (400, "ThrottlingException", "Rate exceeded"),
    "expired": (400, "ExpiredTokenException", "The security token included in the request is expired"),
    "broken": (500, "InternalFailure", "We are looking into it"),
}
KEYS = {name: Key(name, name) for name in ("test", "x")}
S3_ANSWERS = {"throttle": (503, "SlowDown", "Please reduce your request rate."), "expired": (400, "ExpiredToken", "x")}


class Weather:
    """`sky`: a key of ANSWERS, `down` for connections that are cut, "" for a fine day; it hits every `every`th call."""

    def __init__(self) -> None:
        self.sky = ""
        self.every = 1
        self.calls = 0
        self.hits = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        with self._lock:
            self.calls += 1
            if not self.sky or self.calls % self.every:
                return ""
            self.hits += 1
            return self.sky


def handler(weather: Weather) -> type[server.EndpointHandler]:
    """Requests handler that asks the weather first."""

    class Weathered(server.EndpointHandler):
        def do_GET(self) -> None:
            sky = weather.next()
            if not sky:
                self.go_on()
                return
            self.close_connection = True
            if sky == "down":
                return
            target = self.headers.get("X-Amz-Target")
            status, code, message = ANSWERS[sky] if target else S3_ANSWERS[sky]
            if self.read_body is None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
            text = (
                json.dumps({"__type": code, "message": message})
                if target
                else (f"<Error><Code>{code}</Code><Message>{message}</Message></Error>")
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        def go_on(self) -> None:
            super().do_GET()

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    return Weathered


class Sky:
    """An endpoint that can go away and come back at the same address."""

    def __init__(self, store: StoredBuckets, control: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.control, self.weather = store, control, Weather()
        monkeypatch.setattr(server, "EndpointHandler", handler(self.weather))
        self._server: server.Server | None = server.serve([("127.0.0.1", 0)], store, control, keys=KEYS)
        self.port = self._server.port
        self.url = self._server.url

    def go_down(self) -> None:
        """Refuse new connections, cut those that are open."""
        self.weather.sky = "down"
        assert self._server is not None
        self._server.close()
        self._server = None

    def come_back(self) -> None:
        """The same address answers again."""
        self.weather.sky = ""
        self._server = server.serve([("127.0.0.1", self.port)], self.store, self.control, keys=KEYS)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
