"""How large the pages of a Parquet column say they are, before anything is decompressed: there is a header before each
page."""

from __future__ import annotations

from hyperpod_kit.data.formats.compact_thrift import NUMBERS, CompactThrift

_UNCOMPRESSED, _COMPRESSED = 2, 3


def uncompressed(chunk: bytes) -> int:
    """Bytes of all pages of a column chunk, as their headers have it. Raises ValueError for what is no chunk."""
    data, at, total = memoryview(chunk), 0, 0
    while at < len(data):
        header = CompactThrift(data, at)
        try:
            sizes = _sizes(header)
        except IndexError:
            raise ValueError("a page's header is cut off") from None
        plain, packed = sizes.get(_UNCOMPRESSED, -1), sizes.get(_COMPRESSED, -1)
        if plain < 0 or packed < 0:
            raise ValueError("a page's header has no sizes")
        total += plain
        at = header.at + packed
    return total


def _sizes(header: CompactThrift) -> dict[int, int]:
    """Field -> number, of the fields of the header itself that are numbers."""
    sizes: dict[int, int] = {}
    for field, kind in header.fields():
        if kind in NUMBERS:
            sizes[field] = header.number()
        else:
            header.skip(kind)
    return sizes
