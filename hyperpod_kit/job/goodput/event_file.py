"""Writes a file of scalars that TensorBoard reads: records of the protocol buffer `Event`, each with its checksums.

TensorFlow's record format: eight bytes of length and their masked CRC-32C, then the record and its masked CRC-32C. Of
`Event` (tensorflow/core/util/event.proto) this uses wall_time, step, file_version and summary; of a summary's values,
tag and simple_value. So no package of TensorBoard's is needed to write such a file.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import struct
from typing import Iterable, List, Mapping, NamedTuple, Tuple

VERSION = b"brain.Event:2"
"""The file_version in the first record of every such file."""

_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


class ScalarPoint(NamedTuple):
    """The scalars of one moment. `values`: tag -> number, at `time`, Unix seconds, when the training was at `step`."""

    time: float
    step: int
    values: Mapping[str, float]


def encoded(points: Iterable[ScalarPoint], first_record_time: float) -> bytes:
    """Return the bytes of the whole file. `first_record_time`: the time of its first record, Unix seconds."""
    records = [_double(1, first_record_time) + _bytes(3, VERSION)]
    records += [_event(point) for point in points]
    return b"".join(map(_record, records))


def _event(point: ScalarPoint) -> bytes:
    values = [_bytes(1, tag.encode()) + _float(2, number) for tag, number in point.values.items()]
    summary = b"".join(_bytes(1, value) for value in values)
    return _double(1, point.time) + _integer(2, point.step) + _bytes(5, summary)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli), which zlib does not offer."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> Tuple[int, ...]:
    remainders: List[int] = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            lowest_bit = remainder & 1
            remainder >>= 1
            if lowest_bit:
                remainder ^= _POLYNOMIAL
        remainders.append(remainder)
    return tuple(remainders)


_TABLE = _table()


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _integer(field: int, number: int) -> bytes:
    return _key(field, _VARINT) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data
