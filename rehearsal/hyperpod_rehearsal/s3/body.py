"""The body of an HTTP request as chunks of bytes: plain, chunked, and S3's aws-chunked with trailers."""

from __future__ import annotations

import hashlib
import re
from typing import Iterator, Mapping, Optional, Protocol

from hyperpod_rehearsal.s3.body_signature import BodySignature
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.faults import Throttle

CHUNK = 1 << 20
LINE = 8 << 10
"""Bytes that a line between chunks may have, which no length announces."""
TRAILERS = 32
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
DRAIN_LIMIT = 8 << 20
"""Bytes of an unwanted body that are read to keep a connection; a longer one costs the connection."""


class Stream(Protocol):
    """What a body is read from: a buffered binary file."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""

    def readline(self, size: int, /) -> bytes:
        """Up to and with the next newline, at most `size` bytes."""


class RequestBody:
    """Iterate over it once. Raises S3Error IncompleteBody when the client goes away, InvalidRequest for bad framing."""

    def __init__(self, stream: Stream, headers: Mapping[str, str], signature: Optional[BodySignature] = None) -> None:
        """headers: with lower-case names; signature: what it says of the body."""
        self._stream = stream
        self._signature = signature
        self._trailers: dict[str, str] = {}
        self.throttle = Throttle(0)
        self.read_bytes = 0
        self._http_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._aws_chunked = "aws-chunked" in headers.get("content-encoding", "") or headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING-")
        if self._http_chunked:
            self._remaining = 0
            chunks = self._read_http_chunked()
        else:
            self._remaining = int(headers.get("content-length") or 0)
            chunks = self._read_plain()
        if signature is None:
            self._chunks = chunks
        else:
            self._chunks = signature.verify_digest(chunks)
        self._buffer = bytearray()

    def __iter__(self) -> Iterator[bytes]:
        if self._aws_chunked:
            return self._read_aws_chunked()
        return self._chunks

    def trailers(self) -> dict[str, str]:
        """The trailers, lower-case names; complete once the body was read."""
        return self._trailers

    def read(self, limit: int = 16 << 20) -> bytes:
        """The whole body. Raises S3Error when it is longer than `limit` bytes."""
        parts, size = [], 0
        for chunk in self:
            size += len(chunk)
            if size > limit:
                raise S3Error(400, "MaxMessageLengthExceeded", "Your request was too big.")
            parts.append(chunk)
        return b"".join(parts)

    def drain_for_connection_reuse(self) -> bool:
        """Read and discard the rest of the body; False when the connection cannot be used again."""
        start = self.read_bytes
        try:
            for _ in self._chunks:
                if self.read_bytes - start > DRAIN_LIMIT:
                    return False
        except (S3Error, OSError):
            return False
        return True

    def _count_and_throttle(self, data: bytes) -> bytes:
        if not data:
            raise S3Error(
                400,
                "IncompleteBody",
                "You did not provide the number of bytes specified by the Content-Length HTTP header",
            )
        self.read_bytes += len(data)
        self.throttle.count_and_wait(len(data))
        return data

    def _read_plain(self) -> Iterator[bytes]:
        while self._remaining:
            data = self._count_and_throttle(self._stream.read(min(self._remaining, CHUNK, self.throttle.chunk_size)))
            self._remaining -= len(data)
            yield data

    def _read_http_chunked(self) -> Iterator[bytes]:
        while True:
            size = _parse_chunk_size(self._stream.readline(LINE))
            if not size:
                for _ in range(TRAILERS):
                    if not self._stream.readline(LINE).strip():
                        return
                raise S3Error(400, "InvalidRequest", f"more than {TRAILERS} trailers")
            while size:
                data = self._count_and_throttle(self._stream.read(min(size, CHUNK, self.throttle.chunk_size)))
                size -= len(data)
                yield data
            self._stream.readline(LINE)

    def _fill_buffer(self) -> bool:
        data = next(self._chunks, None)
        if data is None:
            return False
        self._buffer += data
        return True

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > LINE:
                raise S3Error(400, "InvalidRequest", f"no line ends within {LINE} bytes")
            if not self._fill_buffer():
                line = bytes(self._buffer)
                self._buffer.clear()
                return line
        line, _, rest = bytes(self._buffer).partition(b"\r\n")
        self._buffer = bytearray(rest)
        return line

    def _read_aws_chunked(self) -> Iterator[bytes]:
        while True:
            header = self._read_line()
            size = _parse_chunk_size(header)
            digest = hashlib.sha256()
            if not size:
                self._verify_chunk(header, digest.hexdigest())
                break
            while size:
                if not self._buffer and not self._fill_buffer():
                    raise S3Error(400, "IncompleteBody", "The request body terminated unexpectedly")
                data = bytes(self._buffer[:size])
                del self._buffer[:size]
                size -= len(data)
                if self._signature is not None and self._signature.signed_chunks:
                    digest.update(data)
                yield data
            self._verify_chunk(header, digest.hexdigest())
            while len(self._buffer) < 2 and self._fill_buffer():
                pass
            del self._buffer[:2]
        while True:
            line = self._read_line()
            if not line:
                break
            if len(self._trailers) == TRAILERS:
                raise S3Error(400, "InvalidRequest", f"more than {TRAILERS} trailers")
            name, _, value = line.decode("latin-1").partition(":")
            self._trailers[name.strip().lower()] = value.strip()
        if self._signature is not None:
            self._signature.verify_trailer_signature(self._trailers)
        for _ in self._chunks:
            pass

    def _verify_chunk(self, header: bytes, digest: str) -> None:
        if self._signature is not None:
            self._signature.verify_chunk_signature(header.partition(b";")[2], digest)


def _parse_chunk_size(line: bytes) -> int:
    """Parse the size in a chunk header, hexadecimal digits alone. Raises S3Error.

    Python's int() takes signs, blanks, underscores and 0x as well.
    """
    size = line.strip().partition(b";")[0].rstrip()
    if _SIZE.fullmatch(size) is None:
        raise S3Error(400, "InvalidRequest", f"a chunk header was expected, found {line[:40]!r}")
    return int(size, 16)
