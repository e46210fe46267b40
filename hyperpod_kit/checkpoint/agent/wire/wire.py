"""Connections between nodes whose ends have greeted: sealed lines and bytes, over TCP.

Both sides greet as agents do (see handshake), each with its number; a key says what the connection is for.
Lines and bytes take turns, as bytes that followed a line at once would be read with it.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.persist.persist import Pace
from hyperpod_kit.checkpoint.agent.wire import handshake
from hyperpod_kit.checkpoint.agent.wire.channel import MessageSeals
from hyperpod_kit.checkpoint.agent.wire.rpc import HANDSHAKE_TIMEOUT
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import listening, parse
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.message_auth import Seal
from hyperpod_kit.untrusted.pending_connections import ConnectionWithFirstLine, Unauthenticated

WIRE_TIMEOUT = 30.0
"""Seconds in which nothing came: the other end is gone."""

_LINE = 64 << 10

Address = Tuple[str, int]


class Wire:
    """One connection. An answer that is not what was expected ends it."""

    def __init__(self, sock: socket.socket, seals: MessageSeals, lines: Lines) -> None:
        self._sock, self._lines = sock, lines
        self._outgoing: Seal = seals.outgoing
        self._incoming: Seal = seals.incoming
        sock.settimeout(WIRE_TIMEOUT)
        lines.most = _LINE

    def send_message(self, **fields: Any) -> None:
        data = json.dumps(fields, separators=(",", ":")).encode()
        self._sock.sendall(self._outgoing.seal_next(data) + b"\n")

    def receive_expected(self, op: str) -> Dict[str, Any]:
        """The next line, which has to be that. Raises OSError, Untrusted, ValueError."""
        message = self.receive_message()
        if message.get("op") != op:
            raise CheckpointError(
                f"the other end says {str(message.get('why', message.get('op')))[:200]!r}, not {op!r}"
            )
        return message

    def receive_message(self) -> Dict[str, Any]:
        """The next line. Raises OSError, Untrusted, ValueError."""
        line = self._lines.receive_line(WIRE_TIMEOUT)
        if line is None:
            raise ConnectionError("the other end closed the connection")
        return parse.parse_json_object(self._incoming.verify_next(line), _LINE)

    def send_parts_updating_mac(self, parts: Iterator[memoryview], mac: Any, pace: Pace) -> None:
        for part in parts:
            pace.wait_for_bytes(len(part))
            mac.update(part)
            self._sock.sendall(part)
            io_progress.record_progress()  # however long a slow rate takes, it is no standstill

    def receive_parts_updating_mac(self, parts: Iterator[memoryview], mac: Any) -> None:
        for part in parts:
            self._fill(part)
            mac.update(part)

    def send_all(self, data: memoryview) -> None:
        """Send raw bytes, whose digest was in the message before."""
        self._sock.sendall(data)

    def receive_all(self, parts: Iterable[memoryview]) -> None:
        """Fill the parts with raw bytes that the other end sends. Raises OSError."""
        for part in parts:
            self._fill(part)

    def _fill(self, part: memoryview) -> None:
        at = 0
        while at < len(part):
            count = self._sock.recv_into(part[at:])
            if not count:
                raise ConnectionError("the other end closed the connection")
            at += count

    def close(self) -> None:
        self._sock.close()


def connect(addresses: Sequence[Address], key: bytes, number: int) -> Wire:
    """A connection to one of these, as that number. Raises ConnectionError."""
    tried = []
    for host, port in addresses:
        tried.append(f"{host} port {port}")
        try:
            sock = socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT)
        except (OSError, UnicodeError):
            continue
        # A greeting knows no newcomer of number 0, which is always its host: here every number may come.
        seals = handshake.perform_newcomer_handshake(sock, key, number + 1, False, HANDSHAKE_TIMEOUT)
        if seals is not None:
            return Wire(sock, *seals)
        sock.close()
    if not tried:
        raise ConnectionError(
            "that node has no known address except loopback, neither by its name nor from other ranks"
        )
    raise ConnectionError(f"no answer at {', '.join(tried)}")


class WireServer:
    """Answers those who greet with the key, each in a thread of its own: `handle(wire, number)`, number < `numbers`.

    What `handle` raises is said to the other end, and ends that connection alone. `port`: where, at each of
    `addresses`. Raises OSError.
    """

    def __init__(
        self,
        key: bytes,
        numbers: int,
        handle: Callable[[Wire, int], None],
        addresses: Sequence[str],
        port: int = 0,
        *,
        name: str,
    ) -> None:
        self._key, self._numbers, self._handle, self._name = key, numbers, handle, name
        try:
            listeners, self.port = listening.listen_on_local_addresses(addresses, port)
        except listening.NoAddress:
            listeners, self.port = listening.listen_on_local_addresses([listening.ANYWHERE], port)
        most = max(64, 2 * numbers)
        self._strangers = Unauthenticated(
            listeners, most=most, seconds=HANDSHAKE_TIMEOUT, welcome=handshake.build_challenge
        )
        threading.Thread(target=self._serve, daemon=True, name=name).start()

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            for sock in self._strangers.sockets_to_poll():
                poll.register(sock, select.POLLIN)
            due = self._strangers.seconds_until_expiry_or_resume
            poll.poll(None if due is None else max(1.0, due * 1000.0))
            for guest in self._strangers.accept_expire_and_collect_first_lines():
                self._authenticate_and_start_thread(guest)

    def _authenticate_and_start_thread(self, guest: ConnectionWithFirstLine) -> None:
        hello = None
        with contextlib.suppress(Exception):  # whatever a stranger says ends nothing but his own connection
            hello = handshake.verify_response(self._key, guest.welcome, guest.line, self._numbers + 1)
        if hello is None:
            guest.sock.close()
            return
        guest.sock.setblocking(True)
        wire = Wire(guest.sock, hello.seals, guest.lines)
        threading.Thread(target=self._serve_peer, args=(wire, hello.rank - 1), daemon=True, name=self._name).start()

    def _serve_peer(self, wire: Wire, number: int) -> None:
        try:
            wire.send_message(op=handshake.WELCOME)
            self._handle(wire, number)
        except Exception as err:  # of the other end, or of our disk: the other end hears of it, and asks elsewhere
            with contextlib.suppress(OSError):
                wire.send_message(op="refused", why=str(err)[:200])
        finally:
            wire.close()
