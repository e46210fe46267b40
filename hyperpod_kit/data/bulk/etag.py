"""Whether a file is the object that an ETag is of: MD5 of the whole, or of the parts in which it was uploaded."""

from __future__ import annotations

import enum
import hashlib
import re
from typing import BinaryIO

_MIB = 1 << 20
_USUAL = tuple(size * _MIB for size in (5, 8, 10, 15, 16, 25, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1024, 5120))
"""Sizes of parts that tools upload: boto3 and the AWS CLI 8 MiB, s5cmd 50 MiB."""

_MOST = 4
"""Sizes that are tried at a time: each costs an MD5 of the file."""


class EtagVerdict(enum.Enum):
    """What an ETag says of a file of the object's size."""

    SAME = "same"
    OTHER = "other"
    """It is not its MD5: other bytes, or an object whose ETag is none, as with SSE-KMS."""
    SILENT = "silent"
    """It is of parts whose sizes are not known."""


def compare(stream: BinaryIO, size: int, etag: str) -> tuple[EtagVerdict, str]:
    """The verdict, and the MD5 of the whole file where it was taken. Raises OSError."""
    found = re.fullmatch(r'"?([0-9a-f]{32})(?:-(\d+))?"?', etag)
    if found is None:
        return EtagVerdict.SILENT, ""
    wanted, parts = found[1], int(found[2] or 0)
    if not parts:
        whole = hashlib.md5(usedforsecurity=False)
        while data := stream.read(_MIB):
            whole.update(data)
        return EtagVerdict.SAME if whole.hexdigest() == wanted else EtagVerdict.OTHER, whole.hexdigest()
    tried = [_Parts(length) for length in sizes_of_parts(size, parts)]
    while tried and (data := stream.read(_MIB)):
        for one in tried:
            one.update(data)
    return EtagVerdict.SAME if any(one.digest() == wanted for one in tried) else EtagVerdict.SILENT, ""


def sizes_of_parts(size: int, parts: int) -> list[int]:
    """Whole MiB in which a file may have been divided into so many parts, the usual ones first."""
    smallest = -(-size // parts)
    largest = (size - 1) // (parts - 1) if parts > 1 else 5 << 40
    round_up = -(-smallest // _MIB) * _MIB
    return [one for one in dict.fromkeys((*_USUAL, round_up)) if smallest <= one <= largest][:_MOST]


class _Parts:
    """MD5 of the MD5s of parts of one length, a multiple of what is given at a time."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._at = 0
        self._part = hashlib.md5(usedforsecurity=False)
        self._whole = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """The next bytes."""
        if self._at == self._length:
            self._end()
        self._part.update(data)
        self._at += len(data)

    def digest(self) -> str:
        """Of all that was given; once."""
        self._end()
        return self._whole.hexdigest()

    def _end(self) -> None:
        self._whole.update(self._part.digest())
        self._part, self._at = hashlib.md5(usedforsecurity=False), 0
