"""Whether a file is the object that an ETag is of: MD5 of the whole, or of the parts in which it was uploaded."""

from __future__ import annotations

import enum
import hashlib
import re
from typing import BinaryIO

_MIB = 1 << 20
_USUAL_PART_SIZES = tuple(
    size * _MIB for size in (5, 8, 10, 15, 16, 25, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1024, 5120)
)
"""Sizes of parts that tools upload: boto3 and the AWS CLI 8 MiB, s5cmd 50 MiB."""

_MAX_CANDIDATES = 4
"""Sizes that are tried at a time: each costs an MD5 of the file."""


class EtagVerdict(enum.Enum):
    """What an ETag says of a file of the object's size."""

    SAME = "same"
    OTHER = "other"
    """It is not its MD5: other bytes, or an object whose ETag is none, as with SSE-KMS."""
    SILENT = "silent"
    """It is of parts whose sizes are not known."""


def etag_verdict_and_md5_or_empty(stream: BinaryIO, size: int, etag: str) -> tuple[EtagVerdict, str]:
    """Compare a file with an ETag; return the verdict, and the MD5 of the whole file where it was computed.

    Raises OSError.
    """
    match = re.fullmatch(r'"?([0-9a-f]{32})(?:-(\d+))?"?', etag)
    if match is None:
        return EtagVerdict.SILENT, ""
    expected, parts = match[1], int(match[2] or 0)
    if not parts:
        file_digest = hashlib.md5(usedforsecurity=False)
        while data := stream.read(_MIB):
            file_digest.update(data)
        if file_digest.hexdigest() == expected:
            return EtagVerdict.SAME, expected
        return EtagVerdict.OTHER, file_digest.hexdigest()
    candidates = [_MultipartDigest(length) for length in candidate_part_sizes(size, parts)]
    while candidates and (data := stream.read(_MIB)):
        for candidate in candidates:
            candidate.update(data)
    if any(candidate.digest() == expected for candidate in candidates):
        return EtagVerdict.SAME, ""
    return EtagVerdict.SILENT, ""


def candidate_part_sizes(size: int, parts: int) -> list[int]:
    """List the part sizes, in whole MiB, that give a file so many parts, the usual ones first."""
    smallest = -(-size // parts)
    largest = 5 << 40
    if parts > 1:
        largest = (size - 1) // (parts - 1)
    round_up = -(-smallest // _MIB) * _MIB
    return [
        size_of_part
        for size_of_part in dict.fromkeys((*_USUAL_PART_SIZES, round_up))
        if smallest <= size_of_part <= largest
    ][:_MAX_CANDIDATES]


class _MultipartDigest:
    """MD5 of the MD5s of parts of one length, a multiple of what is given at a time."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._at = 0
        self._part = hashlib.md5(usedforsecurity=False)
        self._digest_of_parts = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        if self._at == self._length:
            self._finish_part()
        self._part.update(data)
        self._at += len(data)

    def digest(self) -> str:
        """Return the digest of all bytes added. May be called once."""
        self._finish_part()
        return self._digest_of_parts.hexdigest()

    def _finish_part(self) -> None:
        self._digest_of_parts.update(self._part.digest())
        self._part, self._at = hashlib.md5(usedforsecurity=False), 0
