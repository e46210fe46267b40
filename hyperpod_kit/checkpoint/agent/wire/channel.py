"""Messages between trainer and agent and among agents: one JSON object a line over a stream socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.message_auth import Seal

JsonMessage = Dict[str, Any]

PROTOCOL = "hpk-agents/2"
"""Two agents say it first. That all ranks of a run are of the same release is looked at before any agent is started."""

MAX_MESSAGE_BYTES = 256 << 20
"""Bytes of a message of who has proved who he is: a report names every tensor's pieces."""


def encode_without_newline(message: JsonMessage) -> bytes:
    """A message as a line without its end."""
    return json.dumps(message, separators=(",", ":")).encode()


class MessageSeals(NamedTuple):
    """The two directions of a connection whose ends have proved to each other who they are."""

    outgoing: Seal
    incoming: Seal


class Channel:
    """One end of a stream socket. `send` may be called from any thread.

    `seals`: each message carries its proof, and the first one without ends the connection. Without them, the socket
    is a pair that nobody else has an end of. `lines`: what was already read of it.
    """

    def __init__(
        self, sock: socket.socket, seals: Optional[MessageSeals] = None, lines: Optional[Lines] = None
    ) -> None:
        self._sock = sock
        self._seals = seals
        if lines is None:
            self._lines = Lines(sock, MAX_MESSAGE_BYTES)
        else:
            self._lines = lines
        self._lines.most = MAX_MESSAGE_BYTES
        self._lock = threading.Lock()
        self._broken = False

    def send(self, message: JsonMessage) -> bool:
        """Send one message; False when the other end is gone."""
        return self.send_encoded(encode_without_newline(message))

    def send_encoded(self, data: bytes) -> bool:
        """Send a message that `encode_without_newline` has encoded, followed by a newline; return False when the other
        end is gone. For a message to thousands of peers, which is encoded once."""
        with self._lock:
            if self._broken:
                return False
            try:
                self._sock.sendall((self._seals.outgoing.seal_next(data) if self._seals else data) + b"\n")
            except OSError:
                # Part of it may be out: nothing that follows would be understood.
                self._broken = True
        return not self._broken

    def receive(self) -> Optional[JsonMessage]:
        """The next message; None when the other end is gone or talks something else."""
        try:
            return self._verify_and_decode(self._lines.receive_line())
        except (Untrusted, ValueError):
            self.close()
            return None

    def receive_nowait_or_raise_eof(self) -> Optional[JsonMessage]:
        """Return the next message if it can be had now, else None. A socket that can be read needs one call at
        least, and more while `has_pending_message_or_end` is true. Raises EOFError when the other end is gone or
        sends something else."""
        try:
            message = self._verify_and_decode(self._lines.receive_line_nowait())
        except (Untrusted, ValueError) as err:
            raise EOFError(str(err)) from None
        if message is None and self._lines.ended:
            raise EOFError
        return message

    @property
    def has_pending_message_or_end(self) -> bool:
        """Whether a message is here already, or the end: the socket does not become readable for it."""
        return self._lines.has_complete_line or self._lines.ended

    def _verify_and_decode(self, line: Optional[bytes]) -> Optional[JsonMessage]:
        if line is None:
            return None
        return parse.parse_json_object(
            self._seals.incoming.verify_next(line) if self._seals else line, MAX_MESSAGE_BYTES
        )

    def start_receiving(self, on_message: Callable[[JsonMessage], None], on_end: Callable[[], None]) -> None:
        """Start a thread that calls `on_message` for each message, and `on_end` once at the end of the connection."""

        def loop() -> None:
            while True:
                message = self.receive()
                if message is None:
                    break
                on_message(message)
            on_end()

        threading.Thread(target=loop, daemon=True, name="channel").start()

    def set_dead_peer_timeout(self, seconds: int) -> None:
        """From now on a silent machine at the other end counts as gone after about `seconds`.

        A process that dies closes its connections, a machine that loses its power does not. Nothing to do for a
        socket of this machine.
        """
        if self._sock.family == socket.AF_UNIX:
            return
        every = max(1, seconds // 4)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # Thousands that fell silent together would be asked together, and a queue of the kernel overflows.
            idle = every + self._sock.fileno() % every
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            # Keep-alive does not run while sent data waits for its acknowledgement; this bounds that case.
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)

    def fileno(self) -> int:
        """Of the socket; -1 when it is closed."""
        return self._sock.fileno()

    def close_in_forked_child(self) -> None:
        """Close the copy of the socket that a forked child has; the connection itself stays the parent's."""
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
