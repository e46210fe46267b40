"""The generation of this kernel's packet filter: a number that every change of its rules changes, whoever makes it.

Asked for over netlink in 50 microseconds, where listing the rules takes a process. The rules of the old iptables
(iptables-legacy) are not counted. Imports nothing that is not compiled in: every health check asks.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import _socket
import sys

NETFILTER = 12
"""NETLINK_NETFILTER."""
GETGEN = 10 << 8 | 16
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN."""
NEWGEN = 10 << 8 | 15
REQUEST = 1
GEN_ID = 1
"""NFTA_GEN_ID."""


def packet_filter_generation_or_empty() -> str:
    """The number in words, "" where the kernel does not tell it (no nftables, no root). Never raises, never waits."""
    try:
        sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETFILTER)
    except OSError:
        return ""
    try:
        sock.settimeout(0.2)
        # nlmsghdr: length, type, flags, sequence, port; nfgenmsg: family, version, resource.
        sock.sendto(
            _pack_native_int(20, 4)
            + _pack_native_int(GETGEN, 2)
            + _pack_native_int(REQUEST, 2)
            + _pack_native_int(1, 4)
            + bytes(8),
            (0, 0),
        )
        return _parse_generation(sock.recv(4096))
    except OSError:
        return ""
    finally:
        sock.close()


def _parse_generation(response: bytes) -> str:
    if len(response) < 20 or _unpack_native_int(response, 4, 2) != NEWGEN:
        return ""
    at = 20
    while at + 4 <= len(response):
        length, kind = _unpack_native_int(response, at, 2), _unpack_native_int(response, at + 2, 2) & 0x3FFF
        if length < 4:
            break
        if kind == GEN_ID and length >= 8:
            # Big-endian, as all attributes of nftables. A boot begins to count anew.
            return f"{int.from_bytes(response[at + 4 : at + 8], 'big')}"
        at += length + 3 & ~3
    return ""


def _pack_native_int(value: int, size: int) -> bytes:
    return value.to_bytes(size, sys.byteorder)


def _unpack_native_int(text: bytes, at: int, size: int) -> int:
    return int.from_bytes(text[at : at + size], sys.byteorder)
