"""Structures in Thrift's compact protocol, of which a Parquet file's footer and its page headers are made."""

from __future__ import annotations

from collections.abc import Iterator

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGER_TYPES = (I16, I32, I64)
_MAX_DEPTH = 16
_MAX_VARINT_BYTES = 10


class CompactThrift:
    """Reads Thrift's compact protocol from `at` on.

    Raises ValueError for what no writer makes, IndexError where the data ends in the middle.
    """

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self._data = data
        self.at = at

    def iterate_fields(self) -> Iterator[tuple[int, int]]:
        """Yield (number, kind) of each field of a structure; its value is to be read before the next one.

        Numbers increase, as with every writer: of a field that comes twice, readers make different things.
        """
        field = 0
        while True:
            byte = self._read_byte()
            if not byte:
                return
            step, kind = byte >> 4, byte & 15
            number = field + step
            if not step:
                number = self.read_signed_varint()
            if number <= field:
                raise ValueError(f"field {number} after field {field}")
            field = number
            yield field, kind

    def read_list_count_and_kind(self) -> tuple[int, int]:
        """Read (how many, their kind) of a list whose items are read next."""
        head = self._read_byte()
        count = head >> 4
        if count == 15:
            count = self._read_varint()
        if count > len(self._data):
            raise ValueError("a list of more items than bytes")
        return count, head & 15

    def structure_offsets(self) -> Iterator[int]:
        """Yield the place of each item of a list of structures; it is to be read before the next one."""
        count, kind = self.read_list_count_and_kind()
        if count and kind != STRUCT:
            raise ValueError(f"a list of kind {kind}, expected structures")
        for _ in range(count):
            yield self.at

    def read_signed_varint(self) -> int:
        """Read a signed number."""
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)

    def skip_value(self, kind: int, depth: int = 0) -> None:
        """Skip a value."""
        if depth > _MAX_DEPTH:
            raise ValueError("a structure that is nested too deeply")
        if kind in (TRUE, FALSE):
            return
        if kind == BYTE:
            self.at += 1
        elif kind in INTEGER_TYPES:
            self._read_varint()
        elif kind == DOUBLE:
            self.at += 8
        elif kind == BINARY:
            length = self._read_varint()
            self.at += length
        elif kind in (LIST, SET):
            self._skip_items(depth)
        elif kind == STRUCT:
            for _, inner in self.iterate_fields():
                self.skip_value(inner, depth + 1)
        else:
            raise ValueError(f"a field of kind {kind}")

    def _skip_items(self, depth: int) -> None:
        count, kind = self.read_list_count_and_kind()
        for _ in range(count):
            if kind in (TRUE, FALSE):
                self.at += 1
            else:
                self.skip_value(kind, depth + 1)

    def _read_byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _read_varint(self) -> int:
        value = 0
        for shift in range(_MAX_VARINT_BYTES):
            byte = self._read_byte()
            value |= (byte & 127) << (7 * shift)
            if byte < 128:
                return value
        raise ValueError("a number of too many bytes")
