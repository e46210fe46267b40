"""A connection from each node of a step to `job run`: it breaks when the node's part of the step is gone.

Slurm does not notice when slurmstepd dies: srun waits for ever. The kernel does, and closes the connection. It also
carries what a node can no longer write down: that the checkpoint root does not answer there.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import time
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from hyperpod_kit import descriptors

VARIABLE = "HPK_LIFELINE"
BYE, LOST, STORAGE, SERVES = "bye", "lost", "storage", "serves"
"""Words of a node: its rank has ended, its slurmstepd is gone, the checkpoint root does not answer there; it does
again. The last two may come while the rank runs on."""

UNNOTICED = 5.0
"""Seconds that Slurm gets to end a step of which a part has gone without a word."""

PAUSE = 1.0
"""Seconds in which nobody is let in after a connection could not be taken for lack of a descriptor."""

_IDLE = 120
"""Seconds of silence after which the kernel asks whether the other side is there: firewalls forget idle connections."""


def shortage(nodes: int) -> str:
    """What to tell the user when this process may not have a descriptor for a line to each of so many nodes, or ""."""
    wanted, here = 2 * nodes + 100, descriptors.soft()
    if here >= wanted:
        return ""
    return (f"{here} descriptors are allowed and {wanted} wanted for {nodes} nodes: some get no lifeline, so a dead "
            "slurmstepd is not noticed there; raise the hard limit (LimitNOFILE= in slurmd's unit)")


class Lifelines:
    """The side of `job run`: one listening socket an attempt. `address`: of this host, as the other nodes reach it.

    At most half of this process's descriptors are given to nodes (see `shortage`); what is beyond that stays without a
    line, like a node that cannot reach us.
    """

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token = secrets.token_hex(8)
        self._listener: Optional[socket.socket] = None
        self._lines: Dict[socket.socket, bytes] = {}
        self._gone: Dict[str, float] = {}
        self._room = max(1, descriptors.soft() // 2)
        self._paused_until: Optional[float] = None
        self.words: Dict[str, str] = {}
        self.variable = ""
        if address:
            with contextlib.suppress(OSError):
                self._listener = socket.create_server(("", 0), backlog=1024)
                self._listener.setblocking(False)
                self.variable = f"{address}:{self._listener.getsockname()[1]}:{self._token}"

    @property
    def files(self) -> List[int]:
        """Descriptors to wait for. A listener that nobody is taken from would be ready all the time."""
        listener = self._listener if self._paused_until is None and len(self._lines) < self._room else None
        return [sock.fileno() for sock in (listener, *self._lines) if sock is not None]

    @property
    def due(self) -> Optional[float]:
        """Seconds until `cut` may say something new without anything happening; None: never."""
        now = self._clock()
        left = [since + UNNOTICED - now for since in self._gone.values()]
        if self._paused_until is not None:
            left.append(self._paused_until - now)
        return max(0.05, min(left)) if left else None

    def cut(self) -> List[str]:
        """Nodes whose part of the step is gone although srun runs on."""
        self._accept()
        for sock in list(self._lines):
            self._read(sock)
        now = self._clock()
        return sorted(name for name, since in self._gone.items() if now - since >= UNNOTICED)

    @property
    def without_storage(self) -> List[str]:
        """Nodes that said that the checkpoint root does not answer."""
        return sorted(name for name, word in self.words.items() if word == STORAGE)

    def close(self) -> None:
        for sock in (self._listener, *self._lines):
            if sock is not None:
                sock.close()
        self._lines.clear()

    def _accept(self) -> None:
        if self._paused_until is not None and self._clock() < self._paused_until:
            return
        self._paused_until = None
        while self._listener is not None:
            if len(self._lines) >= self._room:
                return
            try:
                sock, _ = self._listener.accept()
            except OSError as err:
                if err.errno == errno.ECONNABORTED:
                    continue
                if err.errno in descriptors.EXHAUSTED:
                    self._paused_until = self._clock() + PAUSE
                return
            sock.setblocking(False)
            self._lines[sock] = b""

    def _read(self, sock: socket.socket) -> None:
        data: Optional[bytes] = None
        with contextlib.suppress(BlockingIOError):
            try:
                data = sock.recv(512)
            except ConnectionError:
                data = b""
        if data:
            self._lines[sock] = self._heard(self._lines[sock] + data)
        if data == b"":
            self._ended(self._lines.pop(sock))
            sock.close()

    def _node(self, said: bytes) -> Tuple[str, str]:
        """(node, its last whole word) of `TOKEN NODE\\nWORD\\n…`; ("", "") of a stranger or an unfinished line."""
        first, *rest = said.decode("ascii", "replace").split("\n")
        token, _, node = first.partition(" ")
        if token != self._token or not rest:
            return "", ""
        return node, rest[-2] if len(rest) > 1 else ""

    def _heard(self, said: bytes) -> bytes:
        """Take up what a node says in mid-step; returns what has to be kept of it."""
        node, word = self._node(said)
        if not node:
            return said[:256]
        if word in (STORAGE, SERVES):
            self.words[node] = word
        first, *rest = said.split(b"\n")
        return b"\n".join([first, *rest[-2:]])[:256]

    def _ended(self, said: bytes) -> None:
        """The connection is closed: in order after a last word, broken without one."""
        node, word = self._node(said)
        if not node:
            return
        word = "" if word == SERVES else word
        self.words[node] = word
        if word == LOST:
            self._gone[node] = self._clock() - UNNOTICED
        elif not word:
            self._gone.setdefault(node, self._clock())


class Line:
    """A rank's side: one a node. Without a listener, or when it cannot be reached, it does nothing."""

    def __init__(self, env: Mapping[str, str], node: str) -> None:
        self._socket: Optional[socket.socket] = None
        host, _, rest = env.get(VARIABLE, "").rpartition(":")[0].rpartition(":")
        token = env.get(VARIABLE, "").rpartition(":")[2]
        if not host or env.get("SLURM_LOCALID", "0") != "0":
            return
        with contextlib.suppress(OSError, ValueError):
            self._socket = socket.create_connection((host, int(rest)), timeout=5.0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
            self._socket.sendall(f"{token} {node}\n".encode())

    def say(self, word: str) -> None:
        """Say a word."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(f"{word}\n".encode())

    def end(self, word: str) -> None:
        """Say the last word."""
        self.say(word)
        if self._socket is not None:
            self._socket.close()
