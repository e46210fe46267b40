"""Listening at the addresses that others are told, and at no other: not at all interfaces.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Iterator, List, Sequence, Tuple

ANYWHERE = ""
"""Listening at this means all interfaces."""

_TRIES = 16
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
_DISCARD = 9


def addresses_reachable_from_peers(name: str, peers: Sequence[str] = ()) -> List[str]:
    """Numeric addresses at which the machines `peers` reach this one, which they may know as `name`; best first.

    Those from which this machine would talk to them, then what `name` means here. /etc/hosts of many systems calls
    the host's own name a loopback address, which is of no use where there are others. May be empty.
    """
    if _is_ip_address(name):
        return [name]
    other_peers = [peer for peer in peers if peer != name]
    source_address = next(
        (source for other in other_peers for source in _non_loopback_source_addresses_to(other)), None
    )
    meant = [source for source in _resolve_addresses_or_empty(name) if not peers or not _is_loopback_address(source)]
    if source_address:
        meant.insert(0, source_address)
    return list(dict.fromkeys(meant))


class NoAddress(OSError):
    """None of the addresses is this machine's."""


def listen_on_local_addresses(addresses: Sequence[str], port: int = 0) -> Tuple[List[socket.socket], int]:
    """Sockets that listen at each of the addresses that this machine has, at one port (0: some free one).

    Raises NoAddress, OSError when the port is taken.
    """
    if port:
        tries = 1
    else:
        tries = _TRIES
    while True:
        sockets: List[socket.socket] = []
        number, tries = port, tries - 1
        try:
            for address in addresses:
                try:
                    sockets.append(socket.create_server((address, number), family=_family_of(address), backlog=1024))
                except OSError as err:
                    if err.errno not in _NOT_OURS and not isinstance(err, socket.gaierror):
                        raise
                    continue
                number = sockets[-1].getsockname()[1]
        except OSError as err:
            for sock in sockets:
                sock.close()
            if err.errno != errno.EADDRINUSE or tries <= 0:
                raise
            continue
        if not sockets:
            raise NoAddress(errno.EADDRNOTAVAIL, "no address of this machine to listen at")
        return sockets, number


def _family_of(address: str) -> socket.AddressFamily:
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET


def _is_ip_address(address: str) -> bool:
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback_address(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _resolve_addresses_or_empty(name: str) -> List[str]:
    try:
        results = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address[0]) for _, _, _, _, address in results]


def _non_loopback_source_addresses_to(peer: str) -> Iterator[str]:
    """The addresses from which this machine would talk to the other one; connecting UDP sends nothing."""
    try:
        results = socket.getaddrinfo(peer, _DISCARD, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return
    for family, kind, proto, _, address in results:
        with contextlib.suppress(OSError), socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            source = str(probe.getsockname()[0])
            if not _is_loopback_address(source):
                yield source
