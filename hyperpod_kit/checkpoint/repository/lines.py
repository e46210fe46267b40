"""Messages between trainer and agent and among agents: one JSON object a line over a stream socket. Never pickle."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any, Callable, Dict, Optional

Message = Dict[str, Any]


class Channel:
    """One end of a stream socket. `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send one message; False when the other end is gone."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._sock.sendall(data)
            return True
        except OSError:
            return False

    def receive(self) -> Optional[Message]:
        """The next message; None when the other end is gone or talks something else."""
        try:
            line = self._file.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def listen(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        """Call `on_message` for each message from a thread of its own, then `on_end` once."""
        def loop() -> None:
            while True:
                message = self.receive()
                if message is None:
                    break
                on_message(message)
            on_end()
        threading.Thread(target=loop, daemon=True, name="channel").start()

    def patience(self, seconds: int) -> None:
        """From now on a silent machine at the other end counts as gone after about `seconds`.

        A process that dies closes its connections, a machine that loses its power does not. Nothing to do for a
        socket of this machine.
        """
        if self._sock.family == socket.AF_UNIX:
            return
        every = max(1, seconds // 4)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            # Keep-alive does not run while sent data waits for its acknowledgement; this bounds that case.
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)

    def fileno(self) -> int:
        """Of the socket; -1 when it is closed."""
        return self._sock.fileno()

    def leave_to_parent(self) -> None:
        """In a forked child: give up this copy of the socket; the connection itself is the parent's."""
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
