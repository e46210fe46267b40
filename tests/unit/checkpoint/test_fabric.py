"""A machine that loses its power sends no end of stream: it must be noticed all the same."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from tests.support.capabilities import require


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=60)


@pytest.fixture
def cut_off_pair() -> Iterator[tuple[socket.socket, str]]:
    """(a connection to another network namespace, the name of the link to cut)."""
    require("network-namespaces")
    name, link = f"hpkt{os.getpid()}", f"hpkt{os.getpid() % 100000}"
    ip("netns", "add", name)
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", "169.254.77.1/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", "169.254.77.2/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        program = (
            "import socket; s = socket.create_server(('169.254.77.2', 7077)); print(flush=True); "
            "c, _ = s.accept(); c.recv(1)"
        )
        peer = subprocess.Popen(["ip", "netns", "exec", name, "python3", "-c", program], stdout=subprocess.PIPE)
        try:
            assert peer.stdout is not None
            peer.stdout.readline()
            with socket.create_connection(("169.254.77.2", 7077), timeout=60) as sock:
                sock.settimeout(None)
                yield sock, link
        finally:
            peer.kill()
            peer.communicate(timeout=60)
    finally:
        subprocess.run(["ip", "link", "del", link], check=False, timeout=60, stderr=subprocess.DEVNULL)
        ip("netns", "del", name)


@pytest.mark.rehearsal
@pytest.mark.parametrize("talking", [False, True], ids=["idle", "with data on the way"])
def test_a_silent_machine_counts_as_gone(cut_off_pair: tuple[socket.socket, str], talking: bool) -> None:
    sock, link = cut_off_pair
    gone = threading.Event()
    channel = Channel(sock)
    channel.set_dead_peer_timeout(2)
    channel.start_receiving(lambda message: None, gone.set)
    ip("link", "set", link, "down")
    if talking:
        channel.send({"op": "done"})
    assert gone.wait(15)
