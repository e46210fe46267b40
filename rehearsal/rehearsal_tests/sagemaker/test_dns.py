import socket
import struct

import pytest

from hyperpod_rehearsal.metadata.dns import DnsResponder, build_response_or_none_if_unserved

A, PTR, AAAA = 1, 12, 28


def question(name, kind=A):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    return struct.pack(">HHHHHH", 4660, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", kind, 1)


def answer_of(reply):
    """Response code and data of the only answer."""
    identifier, flags, _, answers, _, _ = struct.unpack_from(">HHHHHH", reply)
    assert identifier == 4660 and flags & 0x8000
    return flags & 15, reply[-4:] if answers else None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ip-10-1-42-18", (0, bytes([10, 1, 42, 18]))),
        ("IP-10-1-42-18.ec2.internal", (0, bytes([10, 1, 42, 18]))),
        ("ip-10-1-42-18.us-west-2.compute.internal", (0, bytes([10, 1, 42, 18]))),
        ("ip-10-1-42-300", (3, None)),
        ("sagemaker.us-east-1.amazonaws.com", (0, bytes([10, 1, 0, 1]))),
        ("fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", (0, bytes([10, 1, 0, 1]))),
    ],
)
def test_names(name, expected):
    assert answer_of(build_response_or_none_if_unserved(question(name), "10.1.0.1")) == expected


def test_a_known_name_has_no_ipv6_address():
    assert answer_of(build_response_or_none_if_unserved(question("ip-10-1-42-18", AAAA), "10.1.0.1")) == (0, None)


def test_reverse():
    reply = build_response_or_none_if_unserved(question("18.42.1.10.in-addr.arpa", PTR), "10.1.0.1")
    assert reply is not None and reply.endswith(b"\x0dip-10-1-42-18\x03ec2\x08internal\0")


@pytest.mark.parametrize("name", ["example.org", "notamazonaws.com", "ip-10-1-42-18.example.org"])
def test_names_of_others(name):
    assert build_response_or_none_if_unserved(question(name), "10.1.0.1") is None


@pytest.fixture
def responder():
    made = DnsResponder("127.0.0.1", port=0)
    yield made
    made.close()


def query(responder, packet):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.sendto(packet, ("127.0.0.1", responder.port))
        return client.recv(4096)


def test_over_udp(responder):
    assert answer_of(query(responder, question("ip-10-1-42-18"))) == (0, bytes([10, 1, 42, 18]))
    assert answer_of(query(responder, question("example.org"))) == (3, None)


def test_garbage_does_not_stop_it(responder):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for garbage in (b"", b"\0", bytes(12), b"\xff" * 40, question("ip-10-1-42-18")[:-3]):
            client.sendto(garbage, ("127.0.0.1", responder.port))
    assert answer_of(query(responder, question("ip-10-1-42-18"))) == (0, bytes([10, 1, 42, 18]))
