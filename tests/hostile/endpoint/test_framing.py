"""Requests to a rehearsal's endpoint whose bytes are not what was signed, or not one request."""

from __future__ import annotations

import hashlib

import pytest

from hyperpod_rehearsal.standins.mountpoint_s3 import sigv4
from tests.hostile.endpoint.requests import BUCKET, ask, lines, of, raw, signed


def chunked(parts, key, headers, *, forge=-1, drop_trailer=False, trailer=b""):
    """A body of signed chunks, as AWS's SDKs for C and Java send it."""
    stamp, scope = headers["x-amz-date"], headers["authorization"].partition("/")[2].partition(",")[0]
    signing, last = sigv4.derive_signing_key(key.secret, scope), headers["authorization"].rpartition("=")[2]
    out = b""
    for number, part in enumerate([*parts, b""]):
        last = sigv4.compute_signature(
            signing,
            "AWS4-HMAC-SHA256-PAYLOAD",
            stamp,
            scope,
            last,
            sigv4.EMPTY_SHA256,
            hashlib.sha256(part).hexdigest(),
        )
        sent = bytes(len(part)) if number == forge else part
        out += f"{len(part):x};chunk-signature={last}\r\n".encode() + sent + (b"\r\n" if part else b"")
    if trailer:
        last = sigv4.compute_signature(
            signing, "AWS4-HMAC-SHA256-TRAILER", stamp, scope, last, hashlib.sha256(trailer + b"\n").hexdigest()
        )
        out += trailer + b"\r\n" + (b"" if drop_trailer else f"x-amz-trailer-signature:{last}\r\n".encode())
    return out + b"\r\n"


@pytest.mark.parametrize(
    "forge, trailer, drop, status",
    [
        (-1, b"", False, 200),
        (0, b"", False, 403),
        (1, b"", False, 403),
        (-1, b"x-amz-checksum-crc32:AAAAAA==", True, 403),
        (-1, b"x-amz-checksum-crc32:NhCmhg==", False, 200),
    ],
)
def test_a_chunk_that_was_changed_under_way(world, forge, trailer, drop, status):
    url, store, _, keys = world
    parts = [b"hello"] if trailer else [b"a" * 70_000, b"b" * 10]
    words = {
        "content_encoding": "aws-chunked",
        "x_amz_content_sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else ""),
        **({"x_amz_trailer": "x-amz-checksum-crc32"} if trailer else {}),
    }
    headers = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), **words)
    body = chunked(parts, keys.admin, headers, forge=forge, trailer=trailer, drop_trailer=drop)
    got, said = ask(url, "PUT", f"/{BUCKET}/k", body, headers)
    assert got == status, said
    assert store.exists(BUCKET, "k") is (status == 200)


def test_the_example_of_awss_documentation_for_signed_chunks():
    """The very signatures of "Signature calculations: transferring payload in multiple chunks" (S3 API reference)."""
    key = sigv4.derive_signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524/us-east-1/s3/aws4_request")
    last = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    for size, wanted in (
        (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ):
        last = sigv4.compute_signature(
            key,
            "AWS4-HMAC-SHA256-PAYLOAD",
            "20130524T000000Z",
            "20130524/us-east-1/s3/aws4_request",
            last,
            sigv4.EMPTY_SHA256,
            hashlib.sha256(b"a" * size).hexdigest(),
        )
        assert last == wanted


SMUGGLED = b"DELETE /" + BUCKET.encode() + b"/bundle/on_create.sh HTTP/1.1\r\nHost: x\r\n\r\n"
FRAMINGS = {
    "a length and chunks": [b"Content-Length: 4", b"Transfer-Encoding: chunked"],
    "two lengths": [b"Content-Length: 0", b"Content-Length: 90"],
    "a length below zero": [b"Content-Length: -5"],
    "a length with a plus": [b"Content-Length: +5"],
    "a length of Arabic digits": ["Content-Length: ٥".encode()],
    "another coding": [b"Transfer-Encoding: gzip, chunked"],
    "a blank before the colon": [b"Content-Length : 90"],
    "a line that goes on": [b"X-A: b", b"Content-Length", b" : 90"],
    "two hosts": [b"Host: elsewhere"],
    "two signatures": [b"Authorization: AWS4-HMAC-SHA256 x"],
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_request_inside_another(world, framing):
    """Of a signed request whose end two readers see in different places nothing is done, nor of what follows it."""
    url, store, _, keys = world
    head = signed(url, "GET", "/", who=of(keys.admin))
    said = raw(url, lines(url, "GET", "/", head, *FRAMINGS[framing]), SMUGGLED)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1") == 1, said[:300]
    assert store.exists(BUCKET, "bundle/on_create.sh")


@pytest.mark.parametrize("size", [b"-1", b"+5", b"0x5", b"1_0", b"5 5", b"", b"f" * 17, b"5" * 100_000])
def test_the_size_of_a_chunk_that_only_python_reads(world, size):
    url, store, _, keys = world
    words = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), x_amz_content_sha256="UNSIGNED-PAYLOAD")
    said = raw(
        url,
        lines(url, "PUT", f"/{BUCKET}/k", {**words, "transfer-encoding": "chunked"}),
        size,
        b"\r\nhello\r\n0\r\n\r\n",
    )
    assert b" 400 " in said.splitlines()[0] and not store.exists(BUCKET, "k")


def test_trailers_without_an_end(world):
    url, store, _, keys = world
    words = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), x_amz_content_sha256="UNSIGNED-PAYLOAD")
    said = raw(
        url, lines(url, "PUT", f"/{BUCKET}/k", {**words, "transfer-encoding": "chunked"}), b"0\r\n", b"a: b\r\n" * 1000
    )
    assert b" 400 " in said.splitlines()[0] and not store.exists(BUCKET, "k")
