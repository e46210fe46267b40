"""How agents talk: all to the agent of rank 0, over TCP, by a token that only this start of the run knows.

Who connects is a stranger until he has proved that he has the token (see handshake); every message after that carries
its own proof. The token is never sent.
"""

from __future__ import annotations

import _thread
import contextlib
import select
import socket
import sys
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.agent.wire import handshake
from hyperpod_kit.checkpoint.agent.wire.channel import Channel, JsonMessage, encode_without_newline
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import listening
from hyperpod_kit.untrusted.pending_connections import ConnectionWithFirstLine, Unauthenticated

PEER_TIMEOUT = 30
"""Seconds until a silent machine counts as gone while training runs: longer than a hiccup of the network."""

HURRIED_PEER_TIMEOUT = 6
"""The same once the own trainer was killed: a job that waits to be restarted should not wait for a dead machine.
Not at a normal end: there nobody waits, and the last save must not be lost to a machine that is only busy."""

HANDSHAKE_TIMEOUT = 5.0
"""Seconds in which a newcomer has to say who he is."""

RESPONSE_TIMEOUT = 2.0
"""Seconds that an agent which seems to be there gets to say so when another one comes in its place."""

_BESIDE = 64
"""Descriptors of an agent that are not its peers': files, slots, storage's connections."""

_RESERVED = 48
"""As many of them are never given to strangers."""

REJOIN = 60.0
"""Seconds for which an agent that died may be missing while training runs; its trainer starts another one."""

OnPeer = Callable[[int, Optional[JsonMessage]], None]


class _Peer:
    """An agent that has proved who it is. `last_message_at`: when it last said something; `pinged_at`: when it had
    to."""

    def __init__(self, rank: int, channel: Channel) -> None:
        self.rank = rank
        self.channel = channel
        self.last_message_at = time.monotonic()
        self.pinged_at = 0.0

    def ping_and_check_responding(self) -> bool:
        """Ping the agent, unless it still has one to answer; return False when it has not answered within
        RESPONSE_TIMEOUT seconds."""
        now = time.monotonic()
        if self.last_message_at >= self.pinged_at:
            self.pinged_at = now
            # It may be gone with its buffers full: whoever tells it must not be who listens to all others.
            # Nor does anybody wait for a thread that dies of memory before it begins, as Thread.start() does.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self.channel.send, ({"op": handshake.PING},))
        return now - self.pinged_at < RESPONSE_TIMEOUT


class Hub:
    """Rank 0's side, for `peers` others, at each of `addresses`. `on_peer(rank, message)` is called from a thread;
    message None: that agent is gone. `port` is 0 when there are none. It stays open: an agent that died is started
    again and comes back, which is said as {"op": "joined"}. `port` given: that of a predecessor, where the others look
    for this one.

    Raises CheckpointError when this process may not have a descriptor for each of them, OSError.
    """

    def __init__(self, token: str, on_peer: OnPeer, *, peers: int, addresses: Sequence[str], port: int = 0) -> None:
        self._key = token.encode()
        self._on_peer = on_peer
        self._world = peers + 1
        self._peers: Dict[int, _Peer] = {}
        self._by_descriptor: Dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self.port = 0
        if peers + _BESIDE > descriptors.soft_limit():
            raise CheckpointError(
                f"rank 0's agent needs {peers + _BESIDE} descriptors for {peers + 1} ranks, but its node allows "
                f"{descriptors.soft_limit()}",
                hint="raise the hard limit there: LimitNOFILE= in slurmd's unit, or ulimit -Hn",
            )
        if peers:
            listeners, self.port = self._listen_on_addresses_or_anywhere(addresses, port)
            most = min(max(16, 2 * self._world), descriptors.soft_limit() - peers - _RESERVED)
            self._strangers = Unauthenticated(
                listeners, most=most, seconds=HANDSHAKE_TIMEOUT, welcome=handshake.build_challenge
            )
            self._ready = select.epoll()
            threading.Thread(target=self._serve, daemon=True, name="hub").start()

    def _listen_on_addresses_or_anywhere(self, addresses: Sequence[str], port: int) -> Tuple[List[socket.socket], int]:
        with contextlib.suppress(listening.NoAddress):
            return listening.listen_on_local_addresses(addresses, port)
        self._log_once(
            f"none of {', '.join(addresses) or 'no addresses'} is an address of this machine: listening for the "
            "agents of other ranks on all interfaces"
        )
        return listening.listen_on_local_addresses([listening.ANYWHERE], port)

    # --- the thread that listens ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            poll = select.poll()  # select() ends at descriptor 1,023
            poll.register(self._ready, select.POLLIN)
            for sock in self._strangers.sockets_to_poll():
                poll.register(sock, select.POLLIN)
            due = self._strangers.seconds_until_expiry_or_resume
            ready = poll.poll(None if due is None else max(1.0, due * 1000.0))
            if due is not None or any(descriptor != self._ready.fileno() for descriptor, _ in ready):
                for guest in self._strangers.accept_expire_and_collect_first_lines():
                    self._authenticate_and_add_peer(guest)
            if self._strangers.exhausted:
                self._log_once(f"agents of other ranks wait: {self._strangers.exhausted}")
            for descriptor, _ in self._ready.poll(0):
                self._receive_from(self._by_descriptor[descriptor])

    def _authenticate_and_add_peer(self, guest: ConnectionWithFirstLine) -> None:
        """Take in who has proved that he has the token; all others are nobody."""
        hello = None
        with contextlib.suppress(Exception):  # whatever a stranger says ends nothing but his own connection
            hello = handshake.verify_response(self._key, guest.welcome, guest.line, self._world)
        if hello is None:
            guest.sock.close()
            return
        channel = Channel(guest.sock, hello.seals, guest.lines)
        before = self._peers.get(hello.rank)
        if before is not None and (not hello.again or before.ping_and_check_responding()):
            channel.send({"op": handshake.REFUSED})
            channel.close()
            return
        if before is not None:
            self._forget_and_close(before)
        channel.set_dead_peer_timeout(PEER_TIMEOUT)
        peer = _Peer(hello.rank, channel)
        with self._lock:
            self._peers[peer.rank] = peer
        self._by_descriptor[channel.fileno()] = peer
        self._ready.register(channel.fileno(), select.EPOLLIN)
        channel.send({"op": handshake.WELCOME})
        if hello.again:
            self._on_peer(peer.rank, {"op": "joined"})
        self._receive_from(peer)  # it may have come with the greeting

    def _receive_from(self, peer: _Peer) -> None:
        try:
            while True:
                message = peer.channel.receive_nowait_or_raise_eof()
                if message is None:
                    return
                peer.last_message_at = time.monotonic()
                if message.get("op") != handshake.PONG:
                    self._on_peer(peer.rank, message)
                if not peer.channel.has_pending_message_or_end:
                    return  # what else comes makes the socket readable
        except EOFError as err:
            if str(err):
                self._log_once(f"the connection of rank {peer.rank} is ended: {err}")
            self._forget_and_close(peer)
            self._on_peer(peer.rank, None)

    def _forget_and_close(self, peer: _Peer) -> None:
        self._ready.unregister(peer.channel.fileno())
        del self._by_descriptor[peer.channel.fileno()]
        with self._lock:
            del self._peers[peer.rank]
        peer.channel.close()

    def _log_once(self, text: str) -> None:
        if text not in self._logged and len(self._logged) < 100:
            self._logged.add(text)
            print(text, file=sys.stderr, flush=True)

    # --- what others call -------------------------------------------------------------------------------------------

    def set_dead_peer_timeout(self, seconds: int) -> None:
        """Set the timeout of all connections, see Channel.set_dead_peer_timeout."""
        with self._lock:
            for peer in self._peers.values():
                peer.channel.set_dead_peer_timeout(seconds)

    def broadcast(self, message: JsonMessage) -> None:
        with self._lock:
            peers = list(self._peers.values())
        line = encode_without_newline(message)
        for peer in peers:
            peer.channel.send_encoded(line)

    def send_to(self, rank: int, message: JsonMessage) -> None:
        """Send a message to the agent of that rank, if it is connected."""
        with self._lock:
            peer = self._peers.get(rank)
        if peer is not None:
            peer.channel.send(message)


class Uplink(Channel):
    """The connection to rank 0's agent."""

    def start_receiving(self, on_message: Callable[[JsonMessage], None], on_end: Callable[[], None]) -> None:
        """As Channel.start_receiving; pings of the hub are answered here."""

        def on_peer_message(message: JsonMessage) -> None:
            if message.get("op") == handshake.PING:
                self.send({"op": handshake.PONG})
            else:
                on_message(message)

        super().start_receiving(on_peer_message, on_end)


def connect_to_leader(
    addresses: Sequence[Tuple[str, int]], token: str, rank: int, *, again: bool = False, deadline: float = 60.0
) -> Optional[Uplink]:
    """Connect to rank 0's agent at one of its addresses; None when none answered within `deadline` seconds.

    `again`: one of the two agents has taken the place of another.
    """
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        for host, port in addresses:
            try:
                sock = socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT)
            except (OSError, UnicodeError):
                continue
            session = handshake.perform_newcomer_handshake(sock, token.encode(), rank, again, HANDSHAKE_TIMEOUT)
            if session is None:
                sock.close()
                continue
            sock.settimeout(None)
            channel = Uplink(sock, *session)
            channel.set_dead_peer_timeout(PEER_TIMEOUT)
            return channel
        time.sleep(0.2)
    return None
