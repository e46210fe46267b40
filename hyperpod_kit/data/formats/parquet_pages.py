"""What the headers of a Parquet column's pages say, before anything is decompressed: there is one before each page."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hyperpod_kit.data.formats.compact_thrift import INTEGER_TYPES, STRUCT, CompactThrift
from hyperpod_kit.data.formats.parquet_footer import ColumnChunk

_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA_HEADER, _DICTIONARY_HEADER, _DATA_HEADER_2 = 1, 2, 3, 5, 7, 8
_VALUES = 1
_ENCODINGS = {_DATA_HEADER: 2, _DICTIONARY_HEADER: 2, _DATA_HEADER_2: 4}
"""Field of a page's own header -> field in it that says how its values are written."""
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2 = 0, 2, 3
_OWN_HEADER = {_DATA_PAGE: _DATA_HEADER, _DICTIONARY_PAGE: _DICTIONARY_HEADER, _DATA_PAGE_2: _DATA_HEADER_2}
_PLAIN, _PLAIN_DICTIONARY, _DELTA_LENGTHS, _RLE_DICTIONARY = 0, 2, 6, 8
_LENGTH = struct.Struct("<I")
_HEADER_BYTES = (4 << 10, 1 << 20)
"""Bytes that are looked at for a header: most are short, and one with statistics of long words is not."""
_MAX_DICTIONARY_BYTES = 64 << 20
_SMALL_DICTIONARY_DIVISOR = 4
"""A dictionary is small that is such a part of its column: to look at its words costs less than to copy all values."""
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class ColumnPage(NamedTuple):
    """A page of a column chunk. `at`: where its bytes begin, `packed` of them; `plain` when they are decompressed."""

    kind: int
    at: int
    packed: int
    plain: int
    values: int
    encoding: int


def read_page_headers(read: Callable[[int, int], bytes | memoryview], begin: int, end: int) -> Iterator[ColumnPage]:
    """Read the pages of the column chunk in these bytes of a file. Raises ValueError for what is no chunk."""
    at = begin
    while at < end:
        page = _read_page_header(read, at, end)
        yield page
        at = page.at + page.packed


def _read_page_header(read: Callable[[int, int], bytes | memoryview], at: int, end: int) -> ColumnPage:
    for size in _HEADER_BYTES:
        header = CompactThrift(memoryview(read(at, min(size, end - at))))
        try:
            return _parse_page_header(header, at)
        except IndexError:
            continue
    raise ValueError("a page's header is cut off")


def _parse_page_header(header: CompactThrift, at: int) -> ColumnPage:
    numbers: dict[int, int] = {}
    header_fields: dict[int, dict[int, int]] = {}
    for field, kind in header.iterate_fields():
        if kind in INTEGER_TYPES:
            numbers[field] = header.read_signed_varint()
        elif field in _ENCODINGS and kind == STRUCT:
            header_fields[field] = _read_integer_fields(header)
        else:
            header.skip_value(kind)
    plain, packed = numbers.get(_UNCOMPRESSED, -1), numbers.get(_COMPRESSED, -1)
    if plain < 0 or packed < 0:
        raise ValueError("a page's header has no sizes")
    kind = numbers.get(_TYPE, -1)
    field = _OWN_HEADER.get(kind, 0)
    page_fields = header_fields.get(field, {})
    values, encoding = page_fields.get(_VALUES, 0), page_fields.get(_ENCODINGS.get(field, 0), -1)
    return ColumnPage(kind, at + header.at, packed, plain, values, encoding)


def _read_integer_fields(reader: CompactThrift) -> dict[int, int]:
    """Read the fields of a structure that are numbers: field -> number."""
    numbers: dict[int, int] = {}
    for field, kind in reader.iterate_fields():
        if kind in INTEGER_TYPES:
            numbers[field] = reader.read_signed_varint()
        else:
            reader.skip_value(kind)
    return numbers


def can_stay_dictionary_encoded(column: ColumnChunk, pages_of_column: list[ColumnPage]) -> bool:
    """Whether pyarrow can leave the words of a column numbers of a dictionary."""
    encodings = {page.encoding for page in pages_of_column if page.kind != _DICTIONARY_PAGE}
    return column.is_top_level_byte_array and encodings <= {_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY}


def max_decoded_size(
    column: ColumnChunk,
    pages_of_column: list[ColumnPage],
    read: Callable[[int, int], bytes | memoryview],
    scan_words_above: int,
) -> int:
    """Compute how many bytes a column takes when it is decoded, at most.

    Where that could be more than `scan_words_above`, the values of its dictionary are looked at, unless they are
    many and can stay numbers. Raises ValueError for a dictionary that has no such values.
    """
    size = 8 * max(column.values, sum(page.values for page in pages_of_column if page.kind != _DICTIONARY_PAGE))
    if not column.is_variable_or_fixed_byte_array:
        return size
    of_words = 0
    for page in pages_of_column:
        if page.kind == _DICTIONARY_PAGE:
            continue
        if page.encoding in (_RLE_DICTIONARY, _PLAIN_DICTIONARY):
            of_words += page.values
        elif page.encoding in (_PLAIN, _DELTA_LENGTHS):
            size += max(page.plain, page.packed)
        else:  # each value may repeat the one before it
            size += max(1, page.values) * max(page.plain, page.packed)
    dictionaries = [page for page in pages_of_column if page.kind == _DICTIONARY_PAGE]
    if not of_words or not dictionaries:
        return size
    longest = max(_longest_possible_dictionary_value(column, page) for page in dictionaries)
    few = all(page.packed <= column.compressed // _SMALL_DICTIONARY_DIVISOR for page in dictionaries)
    looked_at = column.is_variable_length and (few or not can_stay_dictionary_encoded(column, pages_of_column))
    if looked_at and size + of_words * longest > scan_words_above:
        longest = max(_read_longest_dictionary_value(column, page, read) for page in dictionaries)
    return size + of_words * longest


def _longest_possible_dictionary_value(column: ColumnChunk, page: ColumnPage) -> int:
    plain = max(page.plain, page.packed)
    if not column.is_variable_length:
        return plain // max(1, page.values)
    return max(0, plain - _LENGTH.size * max(1, page.values))


def _read_longest_dictionary_value(
    column: ColumnChunk, page: ColumnPage, read: Callable[[int, int], bytes | memoryview]
) -> int:
    import pyarrow

    codec = _CODECS.get(column.codec)
    if page.plain > _MAX_DICTIONARY_BYTES or (column.codec and codec is None):
        return _longest_possible_dictionary_value(column, page)
    data = read(page.at, page.packed)
    if codec is not None:
        try:
            data = pyarrow.decompress(data, page.plain, codec, asbytes=True)
        except pyarrow.ArrowNotImplementedError:  # a build of pyarrow without this codec
            return _longest_possible_dictionary_value(column, page)
    longest = at = 0
    length_at = _LENGTH.unpack_from
    try:
        for _ in range(page.values):
            (length,) = length_at(data, at)
            at += _LENGTH.size + length
            if length > longest:
                longest = length
    except struct.error:
        raise ValueError("a dictionary that ends in the middle of a word") from None
    return longest
