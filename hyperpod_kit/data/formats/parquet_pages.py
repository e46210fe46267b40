"""How large the pages of a Parquet column say they are, before anything is decompressed: headers are Thrift's compact
protocol, one before each page."""

from __future__ import annotations

from collections.abc import Iterator

_UNCOMPRESSED, _COMPRESSED = 2, 3
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_DEEPEST = 16
_LONGEST_NUMBER = 10


class PageHeader:
    """Reads one header. Raises ValueError, IndexError where it ends in the middle."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def sizes(self) -> dict[int, int]:
        """Field -> number, of the fields of the header itself that are numbers."""
        found: dict[int, int] = {}
        for field, kind in self._fields():
            if kind in (4, 5, 6):
                found[field] = self._zigzag()
            else:
                self._skip(kind, 0)
        return found

    def _fields(self) -> Iterator[tuple[int, int]]:
        field = 0
        while True:
            byte = self._byte()
            if not byte:
                return
            step, kind = byte >> 4, byte & 15
            field = field + step if step else self._zigzag()
            yield field, kind

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _number(self) -> int:
        value = 0
        for place in range(_LONGEST_NUMBER):
            byte = self._byte()
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value
        raise ValueError("a number of too many bytes")

    def _zigzag(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("a header that is nested too deeply")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.at += 1
        elif kind in (4, 5, 6):
            self._number()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            length = self._number()
            self.at += length
        elif kind in (_LIST, _SET):
            self._skip_list(depth)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        else:
            raise ValueError(f"a field of kind {kind}")

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4
        if count == 15:
            count = self._number()
        if count > len(self._data):
            raise ValueError("a list of more items than bytes")
        for _ in range(count):
            if head & 15 in (_TRUE, _FALSE):
                self.at += 1
            else:
                self._skip(head & 15, depth + 1)


def uncompressed(chunk: bytes) -> int:
    """Bytes of all pages of a column chunk, as their headers have it. Raises ValueError for what is no chunk."""
    data, at, total = memoryview(chunk), 0, 0
    while at < len(data):
        header = PageHeader(data, at)
        try:
            sizes = header.sizes()
        except IndexError:
            raise ValueError("a page's header is cut off") from None
        plain, packed = sizes.get(_UNCOMPRESSED, -1), sizes.get(_COMPRESSED, -1)
        if plain < 0 or packed < 0:
            raise ValueError("a page's header has no sizes")
        total += plain
        at = header.at + packed
    return total
