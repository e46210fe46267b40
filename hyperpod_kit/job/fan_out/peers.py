"""Transfer of chunks between nodes over TCP, authenticated by the key of this command, which only its nodes have.

The exchange over a connection of checkpoint/agent/wire, one sealed line for each message, repeated for every chunk:

    chunk   number -> `have` with size and digest -> `go` -> the bytes

The receiver compares the bytes with the digest; the seal proves that the digest is the sender's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Callable, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.wire.wire import Address, Wire, WireServer, connect
from hyperpod_kit.errors import JobError, Untrusted
from hyperpod_kit.job.fan_out.destination import digest_of

_MOST = 64 << 20
_STEP = 1 << 20

Give = Callable[[int], Tuple[memoryview, str]]
"""A function `give(number)` that returns a chunk's bytes and their digest."""


class PeerServer:
    """A server that sends chunks to the other nodes. `port`: its port at each of `addresses`. Raises OSError."""

    def __init__(self, key: bytes, nodes: int, addresses: Sequence[str], give: Give) -> None:
        self._give = give
        self._wires = WireServer(key, nodes, self._serve_chunks, addresses, name="peers")
        self.port = self._wires.port

    def _serve_chunks(self, wire: Wire, _node: int) -> None:
        while True:
            number = wire.receive_expected("chunk").get("number")
            if type(number) is not int:
                raise JobError("not the number of a chunk")
            data, digest = self._give(number)
            wire.send_message(op="have", size=len(data), digest=digest)
            wire.receive_expected("go")  # bytes that followed a line at once would be read with it
            wire.send_all(data)


class ChunkPeer:
    """A client of another node's PeerServer, which connects at the first request."""

    def __init__(self, key: bytes, here: int, addresses: Sequence[Address]) -> None:
        self._key, self._here, self._addresses = key, here, addresses
        self._wire: Optional[Wire] = None

    def chunk(self, number: int, size: int) -> memoryview:
        """Return the bytes of a chunk, compared with the digest that the peer sent.

        Raises OSError, Untrusted, JobError, ValueError.
        """
        if not 0 <= size <= _MOST:
            raise JobError(f"a chunk of {size} bytes")
        wire = self._wire
        if wire is None:
            wire = self._wire = connect(self._addresses, self._key, self._here)
        wire.send_message(op="chunk", number=number)
        reply = wire.receive_expected("have")
        if reply.get("size") != size:
            raise JobError(f"chunk {number} has {reply.get('size')} bytes there, expected {size}")
        wire.send_message(op="go")
        data = memoryview(bytearray(size))
        wire.receive_all([data[at : at + _STEP] for at in range(0, size, _STEP)])
        if digest_of(data) != reply.get("digest"):
            raise Untrusted(f"chunk {number} did not arrive as it was sent")
        return data

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
