"""The checksums of S3's API: which can be computed here, and how parts combine."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Iterable, Mapping, Protocol

ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
HEADER = "x-amz-checksum-"
MEMBERS = {
    "crc32": "ChecksumCRC32",
    "crc32c": "ChecksumCRC32C",
    "crc64nvme": "ChecksumCRC64NVME",
    "sha1": "ChecksumSHA1",
    "sha256": "ChecksumSHA256",
}
"""Names of the XML elements."""


class Digest(Protocol):
    """A running digest."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes so far."""


class Crc32:
    """CRC-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        """Four bytes, most significant first."""
        return self._value.to_bytes(4, "big")


def new_digest(algorithm: str) -> Digest | None:
    """A running digest, or None for those that the standard library lacks: they are kept and given back unchecked."""
    if algorithm == "crc32":
        return Crc32()
    if algorithm in ("sha1", "sha256"):
        return hashlib.new(algorithm)
    return None


def checksums_from_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksums that headers or trailers carry (lower-case names), base64."""
    return {name: headers[HEADER + name] for name in ALGORITHMS if headers.get(HEADER + name)}


def checksum_headers(values: Mapping[str, str]) -> dict[str, str]:
    """The headers that carry these checksums."""
    return {HEADER + name: value for name, value in values.items()}


def announced_algorithms(headers: Mapping[str, str]) -> set[str]:
    """Algorithms whose value a request carries in a header or promises in a trailer."""
    names = set(checksums_from_headers(headers))
    for trailer in headers.get("x-amz-trailer", "").lower().split(","):
        if trailer.strip().startswith(HEADER):
            names.add(trailer.strip()[len(HEADER) :])
    return names & set(ALGORITHMS)


def composite_checksum(algorithm: str, parts: Iterable[str]) -> str | None:
    """Checksum of the parts' checksums (each base64) with the number of parts, or None where it cannot be made."""
    digest, count = new_digest(algorithm), 0
    if digest is None:
        return None
    for value in parts:
        digest.update(base64.b64decode(value))
        count += 1
    return f"{base64.b64encode(digest.digest()).decode()}-{count}"
