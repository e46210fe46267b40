"""Whether slurmd answers on its TCP port, for many nodes at once. Slurm itself takes SlurmdTimeout (300 s) to notice.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from typing import Dict, List, Mapping, Optional, Tuple

from hyperpod_kit import descriptors

OPEN = "open"
REFUSED = "refused"
SILENT = "silent"
UNASKED = "unasked"
"""`open`: slurmd accepts. `refused`: the machine answers, slurmd does not (it may be restarting). `silent`: nothing.
`unasked`: this side could not ask (no descriptor, no port, no resolver), so nothing is known about the node."""

_REFUSALS = (errno.ECONNREFUSED, errno.ECONNRESET)
_LOCAL_FAILURES = (*descriptors.EXHAUSTED, errno.EAGAIN, errno.EADDRNOTAVAIL, errno.ENETDOWN)

AT_ONCE = 256
"""Connections on their way at the same time. A thousand nodes that answer take four round trips instead of one."""


def probe_tcp_ports(addresses: Mapping[str, Tuple[str, int]], timeout: float = 2.0) -> Dict[str, str]:
    """Connect to every (host, port), many at the same time; `open`, `refused`, `silent` or `unasked` per name.

    Each gets `timeout` seconds, so that all take that long for every `AT_ONCE` nodes that stay silent. No more than a
    quarter of this process's descriptors are used. Hosts should be numeric or resolvable from a cache: resolving a name
    may take longer than `timeout`.
    """
    with contextlib.closing(
        _PendingConnections(timeout, min(AT_ONCE, max(1, descriptors.soft_limit() // 4)))
    ) as connections:
        waiting = list(reversed(list(addresses.items())))
        while waiting or connections.has_pending_connections:
            while waiting and connections.has_room:
                name, address = waiting.pop()
                if not connections.start_connect_unless_must_wait(name, *address):
                    waiting.append((name, address))
                    break
            connections.wait_and_record_outcomes()
        return {name: connections.outcomes[name] for name in addresses}


class _PendingConnections:
    """Connections on their way, each with its deadline, and the answers so far."""

    def __init__(self, timeout: float, at_once: int) -> None:
        self._timeout = timeout
        self._at_once = at_once
        self._selector = selectors.PollSelector()  # epoll would need a descriptor
        self._ends: Dict[str, float] = {}  # in the order in which they were begun
        self._socks: Dict[str, socket.socket] = {}
        self.outcomes: Dict[str, str] = {}

    @property
    def has_pending_connections(self) -> bool:
        return bool(self._socks)

    @property
    def has_room(self) -> bool:
        return len(self._socks) < self._at_once

    def start_connect_unless_must_wait(self, name: str, host: str, port: int) -> bool:
        """Begin to connect; False when that must wait until another connection has ended."""
        sock: Optional[socket.socket] = None
        try:
            family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            code = sock.connect_ex(address)
        except socket.gaierror as err:
            # A name that is gone is the node's matter; a resolver that fails is ours.
            if err.errno == socket.EAI_NONAME:
                self.outcomes[name] = SILENT
            else:
                self.outcomes[name] = UNASKED
            return True
        except OSError as err:
            code = err.errno or errno.EMFILE
        if code == errno.EINPROGRESS and sock is not None:
            self._selector.register(sock, selectors.EVENT_WRITE, name)
            self._socks[name], self._ends[name] = sock, time.monotonic() + self._timeout
            return True
        if sock is not None:
            sock.close()
        if code in _LOCAL_FAILURES and self.has_pending_connections:
            return False
        self.outcomes[name] = _outcome_of_errno(code)
        return True

    def wait_and_record_outcomes(self) -> None:
        """Wait until a connect ends or the oldest one's time is over, and record the outcome of each that has
        ended."""
        if not self._socks:
            return
        oldest = next(iter(self._ends.values()))
        for key, _ in self._selector.select(max(0.0, oldest - time.monotonic())):
            self._record_outcome_and_close(
                key.data, _outcome_of_errno(self._socks[key.data].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            )
        now = time.monotonic()
        over: List[str] = [name for name, end in self._ends.items() if end <= now]
        for name in over:
            self._record_outcome_and_close(name, SILENT)

    def _record_outcome_and_close(self, name: str, outcome: str) -> None:
        self.outcomes[name] = outcome
        del self._ends[name]
        sock = self._socks.pop(name)
        self._selector.unregister(sock)
        sock.close()

    def close(self) -> None:
        for sock in self._socks.values():
            sock.close()
        self._selector.close()


def _outcome_of_errno(code: int) -> str:
    if code == 0:
        return OPEN
    if code in _LOCAL_FAILURES:
        return UNASKED
    if code in _REFUSALS:
        return REFUSED
    return SILENT
