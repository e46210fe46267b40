"""Who has connected and has not yet shown who he is: so many at most, each for so many seconds, each one line.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import Counter
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from hyperpod_kit import descriptors
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted.lines import Lines

GREETING = 64 << 10
"""Bytes that the first line may have."""

PAUSE = 1.0
"""Seconds in which nobody is let in after a connection could not be taken for lack of a descriptor."""

_AT_ONCE = 1024
"""Connections that are taken in one turn: the owner has other things to do, too."""


class ConnectionWithFirstLine(NamedTuple):
    """Somebody whose first line is here. `welcome`: what he was told when he came."""

    sock: socket.socket
    lines: Lines
    welcome: bytes
    line: bytes


class _UnauthenticatedEntry(NamedTuple):
    lines: Lines
    welcome: bytes
    until: float
    source: str


class Unauthenticated:
    """The way in from `listeners`, which are closed with it. Nobody gets a thread, and no call waits.

    When there are more than `most`, the one that has waited longest goes, of those of the address that has the most
    here: who fills the room keeps out himself. `welcome`: what each is told first.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        *,
        most: int,
        seconds: float,
        welcome: Callable[[], bytes] = bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listeners = list(listeners)
        self._most = most
        self._seconds = seconds
        self._welcome = welcome
        self._clock = clock
        self._entries: Dict[socket.socket, _UnauthenticatedEntry] = {}
        self._sources: Counter[str] = Counter()
        self._paused_until: Optional[float] = None
        self.exhausted = ""
        """Why nobody is let in at the moment."""
        for listener in self._listeners:
            listener.setblocking(False)

    def __len__(self) -> int:
        return len(self._entries)

    def sockets_to_poll(self, has_room: bool = True) -> List[socket.socket]:
        """What to wait for. A listener that nobody is taken from, for want of `room`, would be ready all the time."""
        if has_room and self._paused_until is None:
            return [*self._listeners, *self._entries]
        return list(self._entries)

    @property
    def seconds_until_expiry_or_resume(self) -> Optional[float]:
        """Seconds until there is something to do without anything happening; None: never."""
        first = next(iter(self._entries.values()), None)
        ends: List[float] = []
        if first:
            ends.append(first.until)
        if self._paused_until is not None:
            ends.append(self._paused_until)
        if ends:
            return max(0.0, min(ends) - self._clock())
        return None

    def accept_expire_and_collect_first_lines(
        self, room_for_connections: Optional[int] = None
    ) -> List[ConnectionWithFirstLine]:
        """Those whose first line has come since; they are the caller's now, to keep or to close.

        `room`: how many connections the caller has room for, theirs among them.
        """
        if room_for_connections is None:
            most = self._most
        else:
            most = min(room_for_connections, self._most)
        arrivals = [guest for sock in list(self._entries) for guest in self._collect_if_first_line_came(sock)]
        now = self._clock()
        for sock in [sock for sock, entry in self._entries.items() if entry.until <= now]:
            self._remove_and_close(sock)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until, self.exhausted = None, ""
        for listener in list(self._listeners):
            for _ in range(_AT_ONCE):
                if self._paused_until is not None or most <= len(arrivals):
                    break
                newcomer = self._accept_register_and_greet(listener)
                if newcomer is None:
                    break
                arrivals += self._collect_if_first_line_came(newcomer)
                while len(self._entries) > most - len(arrivals):
                    worst = max(self._sources, key=lambda source: self._sources[source])
                    self._remove_and_close(
                        next(waiting for waiting, entry in self._entries.items() if entry.source == worst)
                    )
        return arrivals

    def close(self) -> None:
        """Close the listeners and all pending connections."""
        for sock in (*self._listeners, *self._entries):
            sock.close()
        self._listeners.clear()
        self._entries.clear()
        self._sources.clear()

    def _accept_register_and_greet(self, listener: socket.socket) -> Optional[socket.socket]:
        while True:
            try:
                sock, address = listener.accept()
                break
            except OSError as err:
                if err.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                if err.errno in descriptors.EXHAUSTED:
                    self._paused_until = self._clock() + PAUSE
                    self.exhausted = err.strerror or str(err)
                elif err.errno in (errno.EBADF, errno.EINVAL):  # it was closed
                    self._listeners.remove(listener)
                return None
        welcome = self._welcome()
        source = str(address[0])
        self._entries[sock] = _UnauthenticatedEntry(
            Lines(sock, GREETING), welcome, self._clock() + self._seconds, source
        )
        self._sources[source] += 1
        if welcome:
            with contextlib.suppress(OSError):  # the buffer of a new connection holds a line
                sock.send(welcome + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return sock

    def _collect_if_first_line_came(self, sock: socket.socket) -> List[ConnectionWithFirstLine]:
        entry = self._entries[sock]
        try:
            line = entry.lines.receive_line_nowait()
        except Untrusted:
            self._remove_and_close(sock)
            return []
        if line is not None:
            self._remove_entry_without_closing(sock)
            return [ConnectionWithFirstLine(sock, entry.lines, entry.welcome, line)]
        if entry.lines.ended:
            self._remove_and_close(sock)
        return []

    def _remove_entry_without_closing(self, sock: socket.socket) -> None:
        source = self._entries.pop(sock).source
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]

    def _remove_and_close(self, sock: socket.socket) -> None:
        self._remove_entry_without_closing(sock)
        sock.close()
