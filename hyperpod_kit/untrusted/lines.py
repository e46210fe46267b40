"""The one place that reads lines from a socket at whose other end somebody else may be: each has a limit.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import Deque, Optional

from hyperpod_kit.errors import Untrusted

_PIECE = 64 << 10


class Lines:
    """What comes out of a stream socket, line by line, each of at most `most` bytes.

    `arrived` never waits and needs no thread, so one can look at many sockets; `next` waits. Nothing but what has come
    is kept: at most one unfinished line and what came in one piece with it.
    """

    def __init__(self, sock: socket.socket, most: int) -> None:
        self._sock = sock
        self.most = most
        self._complete: Deque[bytes] = deque()
        self._part = bytearray()
        self.ended = False
        """The other end is closed: what `arrived` and `next` still give is the last."""

    @property
    def has_complete_line(self) -> bool:
        """Whether a line is here already: the socket does not become readable for it."""
        return bool(self._complete)

    def receive_line_nowait(self) -> Optional[bytes]:
        """Return the next line, without its end, if it can be had now. A socket that can be read needs one call at
        least.

        Raises Untrusted when it is longer than it may be.
        """
        if not self._complete and not self.ended:
            try:
                self._add_received_data(self._sock.recv(_PIECE, socket.MSG_DONTWAIT))
            except (BlockingIOError, InterruptedError):
                return None
            except OSError:
                self.ended = True
        if self._complete:
            return self._complete.popleft()
        return None

    def receive_line(self, timeout_seconds: Optional[float] = None) -> Optional[bytes]:
        """The next line, without its end; None when the other end is closed, or nothing came `within` so many seconds.

        However slowly the bytes of a line come: `within` is for all of it. Raises Untrusted when it is too long.
        """
        if timeout_seconds is None:
            end = None
        else:
            end = time.monotonic() + timeout_seconds
        while not self._complete and not self.ended:
            try:
                if end is not None:
                    poll = select.poll()  # select() ends at descriptor 1,023
                    poll.register(self._sock, select.POLLIN)
                    if not poll.poll(max(0.0, end - time.monotonic()) * 1000.0):
                        return None
                self._add_received_data(self._sock.recv(_PIECE, socket.MSG_DONTWAIT if end is not None else 0))
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, ValueError):  # poll calls a closed socket a ValueError
                self.ended = True
        if self._complete:
            return self._complete.popleft()
        return None

    def _add_received_data(self, data: bytes) -> None:
        if not data:
            self.ended = True
            return
        *complete, rest = data.split(b"\n")
        for line in complete:
            self._extend_line_or_raise_too_long(line)
            self._complete.append(bytes(self._part))
            self._part.clear()
        self._extend_line_or_raise_too_long(rest)

    def _extend_line_or_raise_too_long(self, part: bytes) -> None:
        if len(self._part) + len(part) > self.most:
            self._part.clear()
            self.ended = True
            raise Untrusted(f"a line of more than {self.most} bytes")
        self._part += part
