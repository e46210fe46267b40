"""A user who sends what is no question to the resolver of a rehearsal, or asks its metadata service without end."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import urllib.request

import pytest

from hyperpod_rehearsal.metadata import metadata_server
from hyperpod_rehearsal.metadata.dns import DnsResponder
from hyperpod_rehearsal.metadata.instance_metadata import MAX_TOKENS, TTL, InstanceIdentity, Metadata
from hyperpod_rehearsal.metadata.metadata_server import MetadataServers
from tests.hostile.users import ATTACKER, ROOT, as_user

NODE = InstanceIdentity(
    "i-0123456789abcdef0",
    "ml.c5.large",
    "10.1.42.18",
    "ip-10-1-42-18",
    "us-east-1",
    "111122223333",
    "arn:aws:iam::111122223333:role/x",
    "ASIA",
    "secret",
    "token",
)
A, PTR = 1, 12


def question(*labels: bytes, kind: int = A, flags: int = 0x0100) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">HHHHHH", 4660, flags, 1, 0, 0, 0) + name + struct.pack(">HH", kind, 1)


@pytest.fixture
def responder():
    made = DnsResponder("127.0.0.1", port=0)
    yield made
    made.close()


def asked(port: int, packet: bytes, patience: float = 20) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(patience)
        client.sendto(packet, ("127.0.0.1", port))
        return client.recv(4096)


GOOD = question(b"ip-10-1-42-18")


@ROOT
def test_a_question_whose_answer_has_no_room_for_its_own_name(responder):
    long = question(*[b"a" * 63] * 4, b"in-addr", b"arpa", kind=PTR)

    def attack() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(long, ("127.0.0.1", responder.port))

    assert as_user(ATTACKER, attack) == 0
    assert asked(responder.port, GOOD)[-4:] == bytes([10, 1, 42, 18])


def test_two_responders_are_not_made_to_answer_each_other(responder):
    """A question in the other's name would go to and fro for ever, were an answer taken for a question."""
    answer = asked(responder.port, GOOD)
    with pytest.raises(TimeoutError):
        asked(responder.port, answer, patience=0.3)
    assert asked(responder.port, GOOD)


def test_noise_for_the_resolver(responder):
    dice = random.Random(20261122)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for number in range(2000):
            packet = bytearray(GOOD if number % 2 else question(*[b"9" * 60] * 4, b"in-addr", b"arpa", kind=PTR))
            for _ in range(dice.randint(1, 6)):
                packet[dice.randrange(len(packet))] = dice.randrange(256)
            client.sendto(bytes(packet[: dice.randint(0, len(packet))]), ("127.0.0.1", responder.port))
            if number % 50 == 49:
                assert asked(responder.port, GOOD)


@pytest.fixture
def metadata():
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    servers = MetadataServers(lambda netns: listening)
    servers.start("netns", NODE)
    yield listening.getsockname()[1]
    servers.stop(NODE.id)


def token(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/latest/api/token", b"", {TTL: "60"}, method="PUT")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_a_node_that_holds_every_connection(metadata):
    """The daemon serves the whole cluster with one table of descriptors: one node gets so many of them."""
    more_than_allowed = metadata_server.MAX_CONNECTIONS + 20
    held = [socket.create_connection(("127.0.0.1", metadata), timeout=20) for _ in range(more_than_allowed)]
    assert held[0].recv(1) == b""
    assert token(metadata)
    for connection in held:
        connection.close()


def test_tokens_without_end():
    service = Metadata(NODE, clock=lambda: 1000.0)
    for _ in range(MAX_TOKENS + 500):
        _, _, newest = service.respond("PUT", "/latest/api/token", {TTL: "21600"})
    assert len(service._tokens) == MAX_TOKENS
    found = service.respond("GET", "/latest/meta-data/instance-id", {"x-aws-ec2-metadata-token": newest.decode()})
    assert found[0] == 200


def test_who_was_forwarded_gets_no_token(metadata):
    """A proxy on the node that is made to ask says for whom; the real service refuses these too."""
    connection = http.client.HTTPConnection("127.0.0.1", metadata, timeout=20)
    with contextlib.closing(connection):
        connection.request("PUT", "/latest/api/token", headers={TTL: "60", "X-Forwarded-For": "10.0.0.9"})
        assert connection.getresponse().status == 403
