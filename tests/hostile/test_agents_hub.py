"""Strangers, and a machine on the way, against the agent of rank 0: what they get is an end of their connection."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from typing import Any, Callable, Iterator, List, Tuple

import pytest

from hyperpod_kit.checkpoint.agent.wire import handshake, rpc
from hyperpod_kit.checkpoint.agent.wire.rpc import Hub, Uplink
from tests.hostile.network import Between, ended, flipped, resident, strangers
from tests.support.wait import until

TOKEN = "0123456789abcdef" * 2


class Leader:
    """A hub and what it has heard."""

    def __init__(self, peers: int = 3) -> None:
        self.heard: queue.SimpleQueue[Tuple[int, Any]] = queue.SimpleQueue()
        self.hub = Hub(TOKEN, lambda *said: self.heard.put(said), peers=peers, addresses=["127.0.0.1"])
        self.address = ("127.0.0.1", self.hub.port)

    def join(self, rank: int, **options: Any) -> Uplink:
        channel = rpc.connect_to_leader([self.address], TOKEN, rank, **options)
        assert channel is not None
        return channel

    def works(self, rank: int = 3) -> None:
        """A rank that comes now gets in and is heard."""
        channel = self.stays = self.join(rank)
        channel.send({"op": "done", "of": rank})
        assert self.next() == (rank, {"op": "done", "of": rank})

    def next(self) -> Tuple[int, Any]:
        return self.heard.get(timeout=60)

    def nothing_heard(self) -> bool:
        return self.heard.empty()


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "HANDSHAKE_TIMEOUT", 0.5)


def test_a_line_without_an_end_is_not_kept(leader: Leader) -> None:
    before, block = resident(), b"x" * (1 << 20)
    with strangers(leader.address, 1) as (sock,):
        with pytest.raises(OSError):
            for _ in range(200):
                sock.sendall(block)
        assert resident() - before < 32 << 20
    leader.works()


def test_three_hundred_silent_strangers_get_no_thread_and_no_more_than_their_seconds(soon: None) -> None:
    leader = Leader()
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    with strangers(leader.address, 300) as socks:
        leader.works()
        assert set(threading.enumerate()) <= before
        assert all(ended(sock) for sock in socks)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b"{" * 60_000,
        b'{"a":' * 10_000,
        b"",
        b"null",
        b"[]",
        b"1" * 60_000,
        b"\xff\xfe\x00\x80",
        b'{"protocol":"hpk-agents/2","nonce":"' + b"0" * 32 + b'","rank":' + b"9" * 4000 + b',"again":false}',
        b'{"protocol":"hpk-agents/2","nonce":"\\ud800' + b"0" * 32 + b'","rank":1,"again":false,"proof":[1e999]}',
        b'{"protocol":"hpk-agents/2","nonce":["' + b"0" * 32 + b'"],"rank":1,"again":false,"proof":""}',
        b'{"protocol":"hpk-agents/2","nonce":"' + b"0" * 32 + b'","rank":true,"again":false,"proof":""}',
        b'{"token":"' + TOKEN.encode() + b'","rank":1,"again":false}',
    ],
)
def test_odd_greetings_end_only_their_own_connection(leader: Leader, line: bytes) -> None:
    with strangers(leader.address, 1, line + b"\n") as (sock,):
        assert ended(sock)
    leader.works()
    assert leader.nothing_heard()


def test_a_thousand_that_speak_a_byte_at_a_time_keep_nobody_out(soon: None) -> None:
    leader = Leader()
    stop = threading.Event()
    with strangers(leader.address, 1000, b"{") as socks:

        def trickle() -> None:
            while not stop.is_set():
                for sock in socks:
                    with contextlib.suppress(OSError):
                        sock.send(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            leader.works()
        finally:
            stop.set()
            thread.join()
        assert all(ended(sock) for sock in socks)


def test_connections_of_which_one_half_is_closed_are_ended(leader: Leader) -> None:
    with strangers(leader.address, 100, b'{"protocol"') as socks:
        for sock in socks:
            with contextlib.suppress(OSError):  # it is ended already: there is no room for all
                sock.shutdown(socket.SHUT_WR)
        assert all(ended(sock, 4.0) for sock in socks), "before their seconds are over"
    leader.works()


def test_no_more_strangers_are_held_than_allowed(leader: Leader) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with strangers(leader.address, 200):
        until(lambda: len(leader.hub._strangers) == 16)
        leader.works()
        assert len(leader.hub._strangers) <= 16
        assert len(os.listdir("/proc/self/fd")) <= before + 200 + 16 + 3


def test_who_fills_the_room_keeps_out_himself() -> None:
    """An agent of another machine that is slow to say who it is stays, while one machine connects without end."""
    leader = Leader()
    with socket.create_connection(leader.address, timeout=60, source_address=("127.0.0.2", 0)) as slow:
        asked = slow.recv(4096).rstrip(b"\n")
        with strangers(leader.address, 300):
            until(lambda: len(leader.hub._strangers) == 16)
            said, seals = handshake.build_response(TOKEN.encode(), asked, 1, False)
            slow.sendall(said + b"\n")
            welcome = slow.recv(4096).rstrip(b"\n")
        assert json.loads(seals.incoming.verify_next(welcome)) == {"op": handshake.WELCOME}


# --- who was heard on the way ---------------------------------------------------------------------------------------


@pytest.fixture
def between(leader: Leader) -> Iterator[Callable[..., Between]]:
    made: List[Between] = []

    def make(change: Callable[[int, bytes], bytes] = lambda _, line: line) -> Between:
        made.append(Between(leader.address, change))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_token_does_not_pass_by(leader: Leader, between: Callable[..., Between]) -> None:
    way = between()
    channel = rpc.connect_to_leader([("127.0.0.1", way.port)], TOKEN, 1)
    assert channel and channel.send({"op": "done"}) and leader.next() == (1, {"op": "done"})
    assert not [line for line in (*way.up, *way.down) if TOKEN.encode() in line or TOKEN[:16].encode() in line]


def test_a_greeting_that_was_recorded_is_of_no_use(leader: Leader, between: Callable[..., Between]) -> None:
    way = between()
    channel = rpc.connect_to_leader([("127.0.0.1", way.port)], TOKEN, 1)
    assert channel and channel.send({"op": "done"}) and leader.next() == (1, {"op": "done"})
    channel.close()
    assert leader.next() == (1, None)
    with strangers(leader.address, 1, b"".join(way.up)) as (sock,):
        assert ended(sock)
    assert leader.nothing_heard()


@pytest.mark.parametrize(
    ("name", "change", "heard"),
    [
        ("repeated", lambda number, line: line * 2 if number == 2 else line, 2),
        ("left out", lambda number, line: b"" if number == 2 else line, 1),
        ("cut off in its middle", lambda number, line: line[:80] + b"\n" if number == 2 else line, 1),
        ("joined to another", lambda number, line: line[:-1] if number == 2 else line, 1),
        ("without its proof", lambda number, line: line[65:] if number == 2 else line, 1),
        (
            "said by somebody else",
            lambda number, line: b"0" * 64 + b' {"op":"done","n":9}\n' if number == 2 else line,
            1,
        ),
    ],
)
def test_what_was_changed_on_its_way_is_not_believed(
    leader: Leader, between: Callable[..., Between], name: str, change: Callable[[int, bytes], bytes], heard: int
) -> None:
    way = between(change)
    channel = rpc.connect_to_leader([("127.0.0.1", way.port)], TOKEN, 2)
    assert channel is not None
    for number in range(1, 5):
        channel.send({"op": "done", "n": number})
    assert [leader.next() for _ in range(heard + 1)] == [
        *((2, {"op": "done", "n": n + 1}) for n in range(heard)),
        (2, None),
    ]
    # The connection is ended, which its agent notices, and comes back.
    assert channel.receive() is None
    leader.join(2, again=True).send({"op": "done", "n": 5})
    assert [leader.next(), leader.next()] == [(2, {"op": "joined"}), (2, {"op": "done", "n": 5})]


@pytest.mark.parametrize("at", range(0, 90, 6))
def test_a_bit_that_was_flipped_ends_the_connection(leader: Leader, between: Callable[..., Between], at: int) -> None:
    way = between(lambda number, line: flipped(line, at) if number == 1 else line)
    channel = rpc.connect_to_leader([("127.0.0.1", way.port)], TOKEN, 2)
    assert channel and channel.send({"op": "done", "n": 1})
    assert leader.next() == (2, None) and leader.nothing_heard()


def test_messages_that_change_places_are_not_believed(leader: Leader, between: Callable[..., Between]) -> None:
    kept: List[bytes] = []

    def change(number: int, line: bytes) -> bytes:
        if number == 1:
            kept.append(line)
            return b""
        return line + kept.pop() if number == 2 else line

    channel = rpc.connect_to_leader([("127.0.0.1", between(change).port)], TOKEN, 2)
    assert channel and channel.send({"n": 1}) and channel.send({"n": 2})
    assert leader.next() == (2, None) and leader.nothing_heard()


def test_an_order_of_another_connection_is_not_obeyed(leader: Leader) -> None:
    """The same bytes in another place: what the hub said to one agent, said by somebody to another."""
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    impostor = socket.create_server(("127.0.0.1", 0))

    def pose() -> None:
        sock, _ = impostor.accept()
        real = socket.create_connection(leader.address)
        asked = real.recv(4096)
        sock.sendall(asked)
        real.sendall(sock.recv(4096))
        welcome = real.recv(4096)
        sock.sendall(welcome)
        sock.sendall(welcome)  # once more, as an order

    threading.Thread(target=pose, daemon=True).start()
    channel = rpc.connect_to_leader([impostor.getsockname()[:2]], TOKEN, 1)
    assert channel is not None, "a machine that only passes on what it hears is not noticed"
    channel.start_receiving(orders.put, lambda: orders.put("ended"))
    assert orders.get(timeout=60) == "ended" and orders.empty()
    impostor.close()


def test_an_impostor_at_the_port_learns_nothing_and_leads_nobody(soon: None) -> None:
    impostor = socket.create_server(("127.0.0.1", 0))
    heard: List[bytes] = []

    def pose() -> None:
        while True:
            try:
                sock, _ = impostor.accept()
            except OSError:
                return
            sock.sendall(handshake.build_challenge() + b"\n")
            heard.append(sock.recv(65536))
            sock.sendall(b'{"op":"welcome"}\n' + b"0" * 64 + b' {"op":"welcome"}\n')

    threading.Thread(target=pose, daemon=True).start()
    assert rpc.connect_to_leader([impostor.getsockname()[:2]], TOKEN, 1, deadline=2.0) is None
    assert heard and not [line for line in heard if TOKEN.encode() in line]
    impostor.close()


# --- who has the token ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, -1, 4, 10**30])
def test_a_rank_that_is_none_is_refused(soon: None, rank: int) -> None:
    leader = Leader()
    assert rpc.connect_to_leader([leader.address], TOKEN, rank, deadline=0.5) is None
    assert leader.nothing_heard()


@pytest.mark.parametrize("again", [False, True], ids=["as if it were the first", "as if it came back"])
def test_a_second_agent_does_not_take_the_place_of_one_that_answers(
    leader: Leader, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "RESPONSE_TIMEOUT", 0.3)
    first = leader.join(1)
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    first.start_receiving(lambda message: None, lambda: ends.put("ended"))
    assert rpc.connect_to_leader([leader.address], TOKEN, 1, again=again, deadline=1.5) is None
    first.send({"op": "done"})
    assert leader.next() == (1, {"op": "done"}) and leader.nothing_heard() and ends.empty()


def test_one_that_comes_back_is_let_in_though_its_predecessor_was_never_seen_to_end(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "RESPONSE_TIMEOUT", 0.3)
    first = leader.join(1)  # its machine is gone without a word: nobody listens at it, so nobody answers
    second = leader.join(1, again=True)
    second.send({"op": "done"})
    assert [leader.next(), leader.next()] == [(1, {"op": "joined"}), (1, {"op": "done"})]
    assert first.receive() == {"op": handshake.PING} and first.receive() is None


def test_the_hub_is_heard_at_its_address_and_at_no_other(leader: Leader) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", leader.hub.port), timeout=60)
