import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_rehearsal.s3.body import RequestBody
from hyperpod_rehearsal.s3.errors import S3Error


def aws_chunked(chunks, trailers=(), signed=False):
    out = bytearray()
    for chunk in [*chunks, b""]:
        out += f"{len(chunk):x}".encode() + (b";chunk-signature=0123" if signed else b"") + b"\r\n"
        if chunk:
            out += chunk + b"\r\n"
    for name, value in trailers:
        out += f"{name}:{value}\r\n".encode()
    return bytes(out + b"\r\n")


def http_chunked(data, size):
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


def test_plain_body_ends_at_its_length():
    stream = io.BytesIO(b"hello" + b"GET / HTTP/1.1")
    assert RequestBody(stream, {"content-length": "5"}).read() == b"hello"
    assert stream.read() == b"GET / HTTP/1.1"


def test_client_that_goes_away_is_an_incomplete_body():
    with pytest.raises(S3Error) as caught:
        RequestBody(io.BytesIO(b"he"), {"content-length": "5"}).read()
    assert caught.value.code == "IncompleteBody"


@given(chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5), signed=st.booleans(), nested=st.integers(0, 7))
def test_aws_chunked_in_any_framing(chunks, signed, nested):
    wire = aws_chunked(chunks, [("x-amz-checksum-crc32", "AAAAAA==")], signed)
    headers = {"content-encoding": "gzip,aws-chunked", "content-length": str(len(wire))}
    if nested:  # HTTP's own chunks cut the other ones anywhere
        wire = http_chunked(wire, nested)
        headers = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "transfer-encoding": "chunked"}
    body = RequestBody(io.BytesIO(wire), headers)
    assert body.read() == b"".join(chunks)
    assert body.trailers() == {"x-amz-checksum-crc32": "AAAAAA=="}
    assert body.drain_for_connection_reuse()


def test_a_chunk_header_that_is_none():
    with pytest.raises(S3Error) as caught:
        RequestBody(io.BytesIO(b"zz\r\nhello"), {"content-encoding": "aws-chunked", "content-length": "9"}).read()
    assert caught.value.status == 400


def test_a_long_unwanted_body_costs_the_connection():
    body = RequestBody(io.BytesIO(bytes(20 << 20)), {"content-length": str(20 << 20)})
    assert not body.drain_for_connection_reuse()
