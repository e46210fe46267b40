"""A DNS responder that answers as the resolver of a VPC does, so that a new node has a name at once."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct
import threading

NODE_NAME = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(\.ec2\.internal|\.[a-z0-9-]+\.compute\.internal)?")
A, PTR, AAAA = 1, 12, 28
NO_ERROR, NAME_ERROR = 0, 3
RESPONSE_BIT = 0x80
"""In the third byte: what comes is no question."""
TTL = 5


class DnsResponder:
    """Answers on `address` over UDP until closed.

    ip-A-B-C-D and ip-A-B-C-D.ec2.internal are A.B.C.D, and back; everything under amazonaws.com is `address`
    itself, where the rehearsal's endpoint listens. Other names do not exist. Raises OSError when the address cannot
    be had.
    """

    def __init__(self, address: str, *, port: int = 53) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((address, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._closing.set()
        # An empty datagram wakes the receiver; closing the socket under it would not.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", (self._address, self.port))
        self._thread.join(timeout=5)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            query, client = self._socket.recvfrom(4096)
            try:
                reply = build_response_or_none_if_unserved(query, self._address)
            except (IndexError, struct.error, ValueError):
                continue  # not a question
            if reply is None:
                reply = _encode_reply(query, NAME_ERROR)
            # Whoever asked may be gone, or never was there: one answer that cannot be sent must not end all others.
            with contextlib.suppress(OSError):
                self._socket.sendto(reply, client)


def build_response_or_none_if_unserved(query: bytes, endpoint_ip: str) -> bytes | None:
    """Return the reply to a query, None for a name that this responder does not serve.

    Raises IndexError, struct.error or ValueError for what is no query.
    """
    if query[2] & RESPONSE_BIT:
        raise ValueError("an answer: two responders would talk to each other for ever")
    labels, end = _parse_question(query)
    kind = struct.unpack_from(">H", query, end)[0]
    name = ".".join(labels)
    node = NODE_NAME.fullmatch(name)
    if node:
        octets = [int(part) for part in node.groups()[:4]]
        if max(octets) > 255:
            return _encode_reply(query, NAME_ERROR)
        return _encode_reply(query, NO_ERROR, A, bytes(octets) if kind == A else b"")
    if name == "amazonaws.com" or name.endswith(".amazonaws.com"):
        return _encode_reply(query, NO_ERROR, A, ipaddress.IPv4Address(endpoint_ip).packed if kind == A else b"")
    if len(labels) == 6 and labels[4:] == ["in-addr", "arpa"]:
        host = (f"ip-{'-'.join(reversed(labels[:4]))}", "ec2", "internal")
        data = b"".join(bytes([len(label)]) + label.encode("ascii") for label in host) + b"\0"
        return _encode_reply(query, NO_ERROR, PTR, data if kind == PTR else b"")
    return None


def _parse_question(query: bytes) -> tuple[list[str], int]:
    """Return the labels of the first question, lower case, and the offset of its type."""
    position, labels = 12, []
    while length := query[position]:
        if length > 63:
            raise IndexError("a question with a compressed name")
        labels.append(query[position + 1 : position + 1 + length].decode("ascii").lower())
        position += 1 + length
    return labels, position + 1


def _encode_reply(query: bytes, code: int, kind: int = A, data: bytes = b"") -> bytes:
    """A reply with the question and, when there is data, one answer that points back at its name."""
    _, end = _parse_question(query)
    flags = 0x8580 | code  # response, authoritative, recursion desired and available
    header = query[:2] + struct.pack(">HHHHH", flags, 1, 1 if data else 0, 0, 0)
    record = b""
    if data:
        record = b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, TTL, len(data)) + data
    return header + query[12 : end + 4] + record
