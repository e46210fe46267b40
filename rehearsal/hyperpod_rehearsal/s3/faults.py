"""Faults on demand and the log of requests: what a test breaks, and what it then sees."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

CODES = {400: "BadRequest", 403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
"""Error code of S3 for an injected status."""


@dataclass
class S3Fault:
    """What goes wrong with requests whose `bucket/key` matches `path` (a regular expression, searched).

    status: answered instead of the request; delay: seconds before anything happens; bandwidth: bytes a second
    for the body, either way; cut: the connection ends in the middle of the answer, or instead of one that has no body;
    method: only this one; count: how many requests are hit, None for all.
    """

    path: str = ""
    method: str = ""
    status: int = 0
    code: str = ""
    delay: float = 0.0
    bandwidth: float = 0.0
    cut: bool = False
    count: int | None = None

    def matches(self, method: str, path: str) -> bool:
        """Whether a request is hit."""
        return self.method in ("", method) and re.search(self.path, path) is not None


@dataclass(frozen=True)
class Effect:
    """The sum of the faults that hit one request; fields as in `S3Fault`, 0 for none."""

    status: int = 0
    code: str = ""
    delay: float = 0.0
    bandwidth: float = 0.0
    cut: bool = False


class Faults:
    """The faults in force. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[S3Fault] = []

    def add(self, fault: S3Fault) -> None:
        """Put a fault in force. Raises ValueError when its pattern is no regular expression."""
        try:
            re.compile(fault.path)
        except re.error as err:
            raise ValueError(f"path {fault.path!r} is no regular expression: {err}") from err
        with self._lock:
            self._active.append(fault)

    def clear(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._active.clear()

    def to_json(self) -> list[dict[str, Any]]:
        """The faults in force, `count` being what is left of it."""
        with self._lock:
            return [asdict(fault) for fault in self._active]

    def consume_matching(self, method: str, path: str) -> Effect:
        """Return the sum of the faults that match a request; uses up one of each one's `count`."""
        status, code, delay, bandwidth, cut = 0, "", 0.0, 0.0, False
        with self._lock:
            for fault in list(self._active):
                if not fault.matches(method, path):
                    continue
                if fault.count is not None:
                    fault.count -= 1
                    if fault.count <= 0:
                        self._active.remove(fault)
                delay += fault.delay
                cut = cut or fault.cut
                bandwidth = min(filter(None, (bandwidth, fault.bandwidth)), default=0.0)
                if fault.status and not status:
                    status, code = fault.status, fault.code or CODES.get(fault.status, "InjectedFault")
        return Effect(status, code, delay, bandwidth, cut)


@dataclass(frozen=True)
class LoggedRequest:
    """One request as it went. started: Unix seconds; body_bytes: of the request for PUT and POST, else the answer."""

    started: float
    method: str
    path: str
    query: str
    status: int
    body_bytes: int
    seconds: float


class RequestLog:
    """The last requests, oldest first. Safe for threads."""

    def __init__(self, limit: int = 5000) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=limit)

    def add(self, entry: LoggedRequest) -> None:
        """Append an entry; the oldest falls out at the limit."""
        self._entries.append(entry)

    def entries(self, method: str = "", path: str = "") -> list[LoggedRequest]:
        """The entries of a method whose path matches the regular expression; all by default."""
        return [entry for entry in list(self._entries) if method in ("", entry.method) and re.search(path, entry.path)]

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()


class Throttle:
    """Holds a stream of bytes to a bandwidth in bytes a second; 0 lets it run."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._started = 0.0
        self._bytes = 0

    @property
    def chunk_size(self) -> int:
        """How many bytes to move at a time, so that the stream stays even."""
        if not self._bandwidth:
            return 1 << 24
        return max(1 << 12, min(1 << 20, int(self._bandwidth / 10)))

    def count_and_wait(self, count: int) -> None:
        """Account for `count` bytes, and wait until they are due."""
        if self._bandwidth:
            self._started = self._started or time.monotonic()
            self._bytes += count
            due = self._started + self._bytes / self._bandwidth
            time.sleep(max(0.0, due - time.monotonic()))
