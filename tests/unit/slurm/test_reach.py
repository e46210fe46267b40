from __future__ import annotations

import socket

from hyperpod_kit.slurm.reach import probe_tcp_ports
from tests.support.wait import Deadline, scaled


def test_open_refused_and_silent_within_the_deadline() -> None:
    with socket.socket() as listening, socket.socket() as bound, socket.socket() as full:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bound.bind(("127.0.0.1", 0))
        # A full backlog drops further connections, which is how a dead machine looks from here.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        timeout = scaled(0.5)
        # The machine may be as fast again, when the deadline is over, as it was slow when the timeout was chosen.
        deadline = Deadline(5 + timeout)
        found = probe_tcp_ports(
            {
                "open": listening.getsockname(),
                "refused": bound.getsockname(),
                "silent": full.getsockname(),
                "nameless": ("no.such.host.invalid", 6818),
            },
            timeout=timeout,
        )
        in_time = not deadline.has_passed()
        for filler in fillers:
            filler.close()
    assert found == {"open": "open", "refused": "refused", "silent": "silent", "nameless": "silent"}
    assert in_time


def test_nothing_to_ask() -> None:
    assert probe_tcp_ports({}) == {}
