"""Ports for programs that bind them later, such as the rendezvous of ranks or a daemon of Slurm's.

A port that the kernel chose for a socket which was closed again comes from the range that it also gives to whoever
connects, so that anybody may have it before the program does. These lie below that range, and each process of the tests
has a block of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from typing import Iterable, List, Tuple

_PORTS_OF_BLOCK = 50
_BLOCKS = (*range(12000, 20000, _PORTS_OF_BLOCK), *range(22000, 29000, _PORTS_OF_BLOCK))
"""Linux gives 32768 to 60999 to whoever connects, efs-utils has 20049 to 21049, torch's defaults begin at 29400."""
_WILDCARDS: Tuple[Tuple[socket.AddressFamily, str], ...] = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))

_lock = threading.Lock()
_reservations: List[socket.socket] = []
"""One for each block that this process has had, open for as long as it runs."""
_unused: List[int] = []
"""The ports of this process's block that it has not given out, in order."""


def free_port() -> int:
    """A port which nothing is bound to and which no other test is given while this process runs."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` such ports in a row, which are at most 50."""
    global _unused
    assert 0 < count <= _PORTS_OF_BLOCK
    with _lock:
        while True:
            if len(_unused) < count:
                _unused = _reserve_block()
            candidates, _unused = _unused[:count], _unused[count:]
            if _are_free(candidates):
                return candidates[0]


def _are_free(ports: Iterable[int]) -> bool:
    """Whether each of them could be bound now, at all addresses of IPv4 and of IPv6."""
    with contextlib.ExitStack() as probes:
        for port in ports:
            for family, address in _WILDCARDS:
                probe = probes.enter_context(socket.socket(family))
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                try:
                    probe.bind((address, port))
                except OSError:
                    return False
    return True


def _reserve_block() -> List[int]:
    """The ports of a block that no other process has. The name that reserves it ends with this process and its forks,
    and is seen in one network namespace, as ports are."""
    # Not `random`'s own numbers, which two processes share that were seeded alike.
    for first in random.SystemRandom().sample(_BLOCKS, len(_BLOCKS)):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0hyperpod-kit-test-ports-{first}")
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        return list(range(first, first + _PORTS_OF_BLOCK))
    raise AssertionError("other tests have all blocks of ports")


def _forget_block() -> None:
    """A forked process takes a block of its own."""
    global _lock
    _lock = threading.Lock()
    _unused.clear()


os.register_at_fork(after_in_child=_forget_block)
