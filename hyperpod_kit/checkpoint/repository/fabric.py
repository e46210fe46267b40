"""How agents talk: all to the agent of rank 0, over TCP, with a token that only this start of the run knows."""

from __future__ import annotations

import errno
import hmac
import socket
import sys
import threading
import time
from typing import Callable, Dict, Optional, Sequence, Tuple

from hyperpod_kit import descriptors
from hyperpod_kit.errors import CheckpointError

from .lines import Channel, Message

PATIENCE = 30
"""Seconds until a silent machine counts as gone while training runs: longer than a hiccup of the network."""

HURRY = 6
"""The same once the own trainer was killed: a job that waits to be restarted should not wait for a dead machine.
Not at a normal end: there nobody waits, and the last save must not be lost to a machine that is only busy."""

_PAUSE = 1.0
"""Seconds until the next try to let somebody in after descriptors or threads have run out."""

_BESIDE = 64
"""Descriptors of an agent that are not its peers': files, slots, storage's connections."""

REJOIN = 60.0
"""Seconds for which an agent that died may be missing while training runs; its trainer starts another one."""

OnPeer = Callable[[int, Optional[Message]], None]


class Hub:
    """Rank 0's side, for `peers` others. `on_peer(rank, message)` is called from threads; message None: that agent is
    gone. `port` is 0 when there are none. It stays open: an agent that died is started again and comes back, which is
    said as {"op": "joined"}. `port` given: that of a predecessor, where the others look for this one.

    Raises CheckpointError when this process may not have a descriptor for each of them.
    """

    def __init__(self, token: str, on_peer: OnPeer, *, peers: int, local: bool, port: int = 0) -> None:
        self._token = token
        self._on_peer = on_peer
        self._peers: Dict[int, Channel] = {}
        self._lock = threading.Lock()
        self._said = False
        self.port = 0
        if peers + _BESIDE > descriptors.soft():
            raise CheckpointError(
                f"rank 0's agent needs {peers + _BESIDE} descriptors for {peers + 1} ranks, {descriptors.soft()} are "
                "allowed on its node", hint="raise the hard limit there: LimitNOFILE= in slurmd's unit, or ulimit -Hn")
        if peers:
            self._server = socket.create_server(("127.0.0.1" if local else "", port), backlog=1024)
            self.port = self._server.getsockname()[1]
            threading.Thread(target=self._accept, daemon=True, name="hub").start()

    def _accept(self) -> None:
        """Let peers in until nobody listens any more. Only that ends it: whoever waits outside is lost otherwise."""
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError as err:
                if err.errno in (errno.EBADF, errno.EINVAL):
                    self._server.close()
                    return
                if err.errno != errno.ECONNABORTED:
                    self._pause(err.strerror or str(err))
                continue
            while not self._receive(sock):
                self._pause("no thread can be started")

    def _receive(self, sock: socket.socket) -> bool:
        try:
            threading.Thread(target=self._greet, args=(sock,), daemon=True, name="peer").start()
        except RuntimeError:
            return False
        return True

    def _pause(self, why: str) -> None:
        if not self._said:
            print(f"agents of other ranks wait: {why}", file=sys.stderr, flush=True)
        self._said = True
        time.sleep(_PAUSE)

    def _greet(self, sock: socket.socket) -> None:
        sock.settimeout(30.0)
        channel = Channel(sock)
        hello = channel.receive()
        if hello is None or not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
            channel.close()
            return
        sock.settimeout(None)
        channel.patience(PATIENCE)
        rank = int(hello["rank"])
        with self._lock:
            self._peers[rank] = channel
            if hello.get("again"):
                self._on_peer(rank, {"op": "joined"})
        channel.listen(lambda message: self._on_peer(rank, message), lambda: self._gone(rank, channel))

    def _gone(self, rank: int, channel: Channel) -> None:
        """The end of a connection is that of the agent, unless it has come back by another one."""
        with self._lock:
            if self._peers.get(rank) is channel:
                self._on_peer(rank, None)

    def patience(self, seconds: int) -> None:
        """See Channel.patience."""
        with self._lock:
            for peer in self._peers.values():
                peer.patience(seconds)

    def broadcast(self, message: Message) -> None:
        with self._lock:
            peers = list(self._peers.values())
        for peer in peers:
            peer.send(message)


def join(addresses: Sequence[Tuple[str, int]], token: str, rank: int, *, again: bool = False,
         deadline: float = 60.0) -> Optional[Channel]:
    """Connect to rank 0's agent at one of its addresses; None when none answered within `deadline` seconds.

    `again`: one of the two agents has taken the place of another.
    """
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        for host, port in addresses:
            try:
                sock = socket.create_connection((host, port), timeout=5.0)
            except OSError:
                continue
            sock.settimeout(None)
            channel = Channel(sock)
            channel.patience(PATIENCE)
            if channel.send({"token": token, "rank": rank, "again": again}):
                return channel
            channel.close()
        time.sleep(0.2)
    return None
