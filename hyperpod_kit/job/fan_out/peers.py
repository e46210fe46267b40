"""Chunks from one node to another, over TCP: by the key of this command, which only its nodes were told.

Both ends greet as agents do (checkpoint/agent/greeting). Then, a sealed line each, as often as there is something:

    chunk   number -> `have` with size and digest -> `go` -> the bytes

Who receives compares the bytes with the digest, which the seal proves to be the sender's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Callable, List, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent import greeting
from hyperpod_kit.checkpoint.agent.partner_wire import Wire
from hyperpod_kit.errors import JobError, Untrusted
from hyperpod_kit.job.fan_out.destination import digest_of
from hyperpod_kit.untrusted import listening
from hyperpod_kit.untrusted.strangers import Guest, Strangers

GREET = 10.0
_MOST = 64 << 20
_STEP = 1 << 20

Give = Callable[[int], Tuple[memoryview, str]]
"""give(number) -> (a chunk's bytes, their digest)."""


class PeerServer:
    """Gives chunks to the other nodes. `port`: where, at each of `addresses`. Raises OSError."""

    def __init__(self, key: bytes, nodes: int, addresses: Sequence[str], give: Give) -> None:
        self._key, self._nodes, self._give = key, nodes, give
        try:
            listeners, self.port = listening.listen(addresses)
        except listening.NoAddress:
            listeners, self.port = listening.listen([listening.ANYWHERE])
        self._strangers = Strangers(listeners, most=max(64, 2 * nodes), seconds=GREET, welcome=greeting.question)
        threading.Thread(target=self._serve, daemon=True, name="peers").start()

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            for sock in self._strangers.files():
                poll.register(sock, select.POLLIN)
            due = self._strangers.due
            poll.poll(None if due is None else max(1.0, due * 1000.0))
            for guest in self._strangers.arrived():
                self._meet(guest)

    def _meet(self, guest: Guest) -> None:
        hello = None
        with contextlib.suppress(Exception):  # whatever a stranger says ends nothing but his own connection
            hello = greeting.heard(self._key, guest.said, guest.line, self._nodes + 1)
        if hello is None:
            guest.sock.close()
            return
        guest.sock.setblocking(True)
        wire = Wire(guest.sock, hello.seals, guest.lines)
        threading.Thread(target=self._answer, args=(wire,), daemon=True, name="peer").start()

    def _answer(self, wire: Wire) -> None:
        try:
            wire.say(op=greeting.WELCOME)
            while True:
                number = wire.hear("chunk").get("number")
                if type(number) is not int:
                    raise JobError("no number of a chunk")
                data, digest = self._give(number)
                wire.say(op="have", size=len(data), digest=digest)
                wire.hear("go")  # bytes that followed a line at once would be read with it
                wire.send_all(data)
        except Exception as err:  # of a peer, or of our disk: the peer hears of it, and asks somebody else
            with contextlib.suppress(OSError):
                wire.say(op="refused", why=str(err)[:200])
        finally:
            wire.close()


class ChunkPeer:
    """Another node that has chunks, connected when it is first asked."""

    def __init__(self, key: bytes, here: int, addresses: Sequence[Tuple[str, int]]) -> None:
        self._key, self._here, self._addresses = key, here, addresses
        self._wire: Optional[Wire] = None

    def chunk(self, number: int, size: int) -> memoryview:
        """Its bytes, compared with what the peer says of them. Raises OSError, Untrusted, JobError, ValueError."""
        if not 0 <= size <= _MOST:
            raise JobError(f"a chunk of {size} bytes")
        wire = self._wire = self._wire or self._met()
        wire.say(op="chunk", number=number)
        said = wire.hear("have")
        if said.get("size") != size:
            raise JobError(f"chunk {number} has {said.get('size')} bytes there, expected {size}")
        wire.say(op="go")
        data = memoryview(bytearray(size))
        wire.receive_all([data[at : at + _STEP] for at in range(0, size, _STEP)])
        if digest_of(data) != said.get("digest"):
            raise Untrusted(f"chunk {number} did not arrive as it was sent")
        return data

    def _met(self) -> Wire:
        tried: List[str] = []
        for host, port in self._addresses:
            try:
                sock = socket.create_connection((host, port), timeout=GREET)
            except (OSError, UnicodeError):
                tried.append(f"{host} port {port}")
                continue
            # A greeting knows no newcomer of number 0, which is a hub's own.
            met = greeting.greet(sock, self._key, self._here + 1, False, GREET)
            if met is not None:
                return Wire(sock, *met)
            sock.close()
        raise ConnectionError(f"no answer at {', '.join(tried) or 'any address'}")

    def close(self) -> None:
        """What comes next is asked over a new connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
