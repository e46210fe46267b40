"""Lines from a socket at whose other end somebody else is."""

from __future__ import annotations

import socket
import threading

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.listening import NoAddress, addresses_reachable_from_peers, listen_on_local_addresses


def test_lines_come_whole_however_they_were_cut() -> None:
    ours, theirs = socket.socketpair()
    lines = Lines(ours, 100)
    assert lines.receive_line_nowait() is None and not lines.ended
    theirs.sendall(b"one\ntwo\n\nthr")
    assert [lines.receive_line_nowait(), lines.receive_line(), lines.receive_line_nowait()] == [b"one", b"two", b""]
    assert lines.receive_line_nowait() is None and lines.receive_line(timeout_seconds=0.01) is None and not lines.ended
    theirs.sendall(b"ee\nrest")
    theirs.close()
    assert lines.receive_line() == b"three"
    assert lines.receive_line() is None and lines.ended, "what has no end is no line"


@pytest.mark.parametrize("pieces", [[b"x" * 101], [b"x" * 60, b"x" * 60], [b"a\n" + b"x" * 101 + b"\nb\n"]])
def test_a_line_that_is_too_long_is_refused_before_its_end_is_here(pieces: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    lines = Lines(ours, 100)
    with pytest.raises(Untrusted, match="more than 100 bytes"):
        for piece in pieces:
            theirs.sendall(piece)
            lines.receive_line_nowait()
    assert lines.ended


def test_a_line_of_the_longest_length_is_taken() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"x" * 100 + b"\n")
    assert Lines(ours, 100).receive_line() == b"x" * 100


def test_waiting_ends_when_the_socket_is_closed_here() -> None:
    ours, _theirs = socket.socketpair()
    lines = Lines(ours, 100)
    waiting = threading.Thread(target=lines.receive_line)
    waiting.start()
    ours.shutdown(socket.SHUT_RDWR)
    waiting.join(20)
    assert not waiting.is_alive() and lines.ended


def test_who_listens_at_an_address_is_heard_at_no_other() -> None:
    (sock,), port = listen_on_local_addresses(["127.0.0.1"])
    with sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=60)


def test_several_addresses_have_one_port_and_those_of_other_machines_are_left_out() -> None:
    sockets, port = listen_on_local_addresses(["127.0.0.1", "192.0.2.1", "127.0.0.2"])
    assert [sock.getsockname() for sock in sockets] == [("127.0.0.1", port), ("127.0.0.2", port)]
    with pytest.raises(OSError, match="in use"):
        listen_on_local_addresses(["127.0.0.3", "127.0.0.2"], port)
    for sock in sockets:
        sock.close()
    with pytest.raises(NoAddress):
        listen_on_local_addresses(["192.0.2.1"])


def test_own_addresses_are_numbers_and_loopback_is_of_no_use_to_others() -> None:
    assert addresses_reachable_from_peers("192.0.2.7", ["n2"]) == ["192.0.2.7"]
    assert "127.0.0.1" in addresses_reachable_from_peers("localhost")
    assert addresses_reachable_from_peers("localhost", ["127.0.0.9"]) == []
    assert addresses_reachable_from_peers("no.such.host.invalid") == []
