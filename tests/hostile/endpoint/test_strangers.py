"""Who has no key, and what may still reach the endpoint of a rehearsal: memory, time, names, noise."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hyperpod_rehearsal.endpoint import front_door
from tests.hostile.endpoint.requests import BUCKET, ask, client, lines, of, raw, signed


def test_the_body_of_a_stranger_is_not_read_into_memory(world):
    url, *_ = world
    before = peak()
    body = b"x" * (1 << 20)

    for header in (b"Content-Length: 67108864", b"Transfer-Encoding: chunked"):
        raw(
            url,
            lines(url, "POST", "/", {"host": "x", "x-amz-target": "SageMaker.CreateCluster"}, header),
            *[b"%x\r\n%s\r\n" % (len(body), body) if b"chunked" in header else body] * 64,
        )
    assert peak() - before < 32 << 20


def peak() -> int:
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmRSS"].split()[0]) << 10


@pytest.mark.parametrize(
    "what, status",
    [
        (b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % number for number in range(500)) + b"\r\n", b"431"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
    ids=["a long header", "many headers", "a long line"],
)
def test_huge_headers(world, what, status):
    url, *_ = world
    assert raw(url, what).startswith(b"HTTP/1.1 " + status)
    assert ask(url, "GET", "/")[0] == 403


def test_strangers_who_say_nothing_keep_nobody_out(world):
    """There are places for so many; the next one takes the place of the oldest, and who has signed keeps his."""
    url, _, _, keys = world
    place = urlsplit(url)
    known = http.client.HTTPConnection(place.netloc, timeout=20)
    for _ in range(2):
        known.request("GET", "/", headers=signed(url, "GET", "/", who=of(keys.admin)))
        assert known.getresponse().read().startswith(b"<?xml")
        strangers = [
            socket.create_connection((place.hostname, place.port), timeout=20)
            for _ in range(front_door.MAX_UNAUTHENTICATED + 20)
        ]
        strangers[0].settimeout(20)
        assert strangers[0].recv(1) == b"", "the oldest stranger is still there"
        threads = sum("process_request_thread" in thread.name for thread in threading.enumerate())
        assert threads <= front_door.MAX_UNAUTHENTICATED + 25
        assert client("s3", url, keys.admin).list_buckets()["Buckets"][0]["Name"] == BUCKET
        for stranger in strangers:
            # With a reset: nothing of theirs lingers.
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
    known.close()


def test_a_stranger_who_drips_is_let_go(world, monkeypatch):
    url, *_ = world
    monkeypatch.setattr(front_door.FrontDoor, "timeout", 0.2)
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(100) == b""


@pytest.mark.parametrize(
    "path",
    [
        "/{bucket}/../../../etc/passwd",
        "/{bucket}/%2e%2e/%2e%2e/keys.json",
        "/../keys.json",
        "/%2e%2e/keys.json",
        "/{bucket}/..%2f..%2fkeys.json",
        "//etc/passwd",
        "/{bucket}/%00",
        "/{bucket}/a%00b",
        "/./{bucket}/x",
        "/..",
        "/{bucket}/" + "a/" * 400 + "x",
    ],
)
def test_names_that_climb(world, tmp_path, path):
    """Even with the right key no name leads to a file outside the store."""
    url, _, _, keys = world
    (tmp_path / "keys.json").write_text("secret of the state directory")
    path = path.format(bucket=BUCKET)
    before = outside(tmp_path)
    for method, body in (("GET", b""), ("HEAD", b""), ("PUT", b"overwritten"), ("DELETE", b"")):
        said = ask(url, method, path, body, signed(url, method, path, body, who=of(keys.admin)))
        assert b"secret of" not in said[1] and b"root:x" not in said[1] and said[0] != 500, said
    assert outside(tmp_path) == before


def outside(place: Path) -> set[str]:
    return {
        str(found) + (found.read_text() if found.is_file() else "")
        for found in place.rglob("*")
        if "s3" not in found.relative_to(place).parts
    }


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a/..", "A", "x", "..a", "_rehearsal", "a" * 64])
def test_buckets_with_names_of_directories(world, tmp_path, name):
    url, store, _, keys = world
    before = store.bucket_names()
    ask(url, "PUT", f"/{name}", b"", signed(url, "PUT", f"/{name}", who=of(keys.admin)))
    assert store.bucket_names() == before and not (tmp_path / "s3" / "..a").exists()


def test_noise(world):
    """A signed request with a few bytes changed is refused, or says what it said before; nothing breaks on it."""
    url, store, operations, keys = world
    dice, served = random.Random(20261122), 0
    good = (
        lines(
            url,
            "PUT",
            f"/{BUCKET}/n",
            signed(url, "PUT", f"/{BUCKET}/n", b"x", who=of(keys.admin)),
            b"Content-Length: 1",
        )[:-2]
        + b"\r\n"
        + b"x"
    )
    for _ in range(150):
        broken = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(broken) - 1)
            kind = dice.randrange(3)
            if kind == 0:
                broken[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                del broken[at : at + dice.randint(1, 9)]
            else:
                broken[at:at] = bytes(dice.choices(b"\r\n: ;,\x00\xff=/0", k=dice.randint(1, 5)))
        if bytes(broken) == good:
            continue
        said = raw(url, bytes(broken))
        assert b" 500 " not in said[:20] and b"Traceback" not in said, said
        served += b" 200 " in said[:20]
    # What the signature leaves free: blanks around a value, the case of a name, a header more.
    assert served < 50 and operations.told == []
    assert (store.bucket_names() == [BUCKET] and not store.exists(BUCKET, "n")) or store.get(BUCKET, "n") == b"x"
    assert store.get(BUCKET, "bundle/on_create.sh") == b"#!/bin/bash\n"
