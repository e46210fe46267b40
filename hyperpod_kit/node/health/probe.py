"""Touch a mount without being caught by it: in a grandchild that can be abandoned, with a hard deadline.

`timeout 5 stat /mnt` is not that: it waits for a child in uninterruptible sleep, and a child that inherited slurmd's
pipes keeps slurmd waiting for as long as it hangs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class Probed:
    """What touching a path gave. outcome: `answered`, `error` (then `errno`) or `no_answer` within the deadline.

    latency_ms: until the answer; blocks, available: of 1 file system, `available` for ordinary users.
    """

    outcome: str
    errno: int = 0
    latency_ms: float = 0.0
    read_only: bool = False
    blocks: int = 0
    available: int = 0


class Probe:
    """One probe that was started. Always `finish` it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid: Optional[int] = None
        self._started = time.monotonic()
        self._reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - runs in the child
            _first_child(path, writer)
        os.close(writer)
        os.waitpid(child, 0)  # it ends at once: the prober is its child, and nobody's to wait for

    def finish(self, deadline: float) -> Probed:
        """The answer, or `no_answer` once `deadline` seconds have passed since the start. Never takes longer."""
        lines = b""
        try:
            while True:
                left = max(0.0, self._started + deadline - time.monotonic())
                ready, _, _ = select.select([self._reader], [], [], left)
                if not ready:
                    return self._abandon()
                chunk = os.read(self._reader, 4096)
                if not chunk:
                    break
                lines += chunk
                if self.pid is None and b"\n" in lines:
                    self.pid = int(lines.split(b"\n", 1)[0])
        finally:
            os.close(self._reader)
        latency = (time.monotonic() - self._started) * 1000
        try:
            answer: Dict[str, Any] = json.loads(lines.split(b"\n", 1)[1])
        except (ValueError, IndexError):
            return Probed("no_answer", latency_ms=latency)  # killed before it could speak
        return Probed(latency_ms=round(latency, 1), **answer)

    def _abandon(self) -> Probed:
        if self.pid is not None:
            # Frees a prober that waits for FUSE or NFS; one in D state ignores it and stays behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
        return Probed("no_answer", latency_ms=round((time.monotonic() - self._started) * 1000, 1))


def _first_child(path: str, writer: int) -> None:  # pragma: no cover - runs in the child
    try:
        os.setsid()
        if os.fork() == 0:
            _prober(path, writer)
    finally:
        os._exit(0)


def _prober(path: str, writer: int) -> None:  # pragma: no cover - runs in the grandchild
    try:
        writer = fcntl.fcntl(writer, fcntl.F_DUPFD, 3)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, writer)
        os.closerange(writer + 1, 1024)
        os.write(writer, f"{os.getpid()}\n".encode())
        os.write(writer, json.dumps(_touch(path)).encode())
    finally:
        os._exit(0)


def _touch(path: str) -> Dict[str, Any]:
    try:
        os.stat(path)
        # Not answered from a cache: it reaches the server, and the daemon of a FUSE mount, but costs no S3 request.
        seen = os.statvfs(path)
    except OSError as err:
        return {"outcome": "error", "errno": err.errno or 0}
    return {"outcome": "answered", "read_only": bool(seen.f_flag & os.ST_RDONLY),
            "blocks": seen.f_blocks, "available": seen.f_bavail}


def probe(path: str, deadline: float) -> Probed:
    """Start a probe and finish it."""
    return Probe(path).finish(deadline)
