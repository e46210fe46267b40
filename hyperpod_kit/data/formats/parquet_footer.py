"""What a Parquet file's footer says of the columns of its row groups.

It is read here and not by pyarrow, which ends the whole process (`std::terminate`) when it is asked for the metadata of
a column that contradicts itself, as one of an odd size of a histogram.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from hyperpod_kit.data.formats.compact_thrift import BINARY, INTEGER_TYPES, LIST, STRUCT, CompactThrift

_END = struct.Struct("<I4s")
_MAGIC = b"PAR1"
_ROW_GROUPS = 4
_COLUMNS = 1
_METADATA, _CRYPTO, _ENCRYPTED = 3, 8, 9
_TYPE, _PATH, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE = 1, 3, 4, 5, 6, 7, 9, 11
_REQUIRED = (_TYPE, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE)
_BYTE_ARRAY, _FIXED_LEN_BYTE_ARRAY = 6, 7


class ColumnChunk(NamedTuple):
    """One column of a row group. `dictionary_page`: its offset, None without one."""

    physical_type: int
    depth: int
    codec: int
    values: int
    uncompressed: int
    compressed: int
    data_page: int
    dictionary_page: int | None

    @property
    def is_top_level_byte_array(self) -> bool:
        """Whether its values are of any length, in no structure or list."""
        return self.is_variable_length and self.depth == 1

    @property
    def is_variable_length(self) -> bool:
        """Whether each value says how long it is."""
        return self.physical_type == _BYTE_ARRAY

    @property
    def is_variable_or_fixed_byte_array(self) -> bool:
        """Whether each value may be as long as the whole dictionary."""
        return self.physical_type in (_BYTE_ARRAY, _FIXED_LEN_BYTE_ARRAY)

    @property
    def first_page_offset(self) -> int:
        """Return the offset of its first page. Some writers say that a dictionary that there is not lies at 0."""
        if not self.dictionary_page:
            return self.data_page
        return min(self.data_page, self.dictionary_page)


class ParquetFooter:
    """A file's footer. Raises ValueError for one that no writer makes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        length, magic = 0, b""
        if size >= _END.size:
            length, magic = _END.unpack(read(size - _END.size, _END.size))
        if magic != _MAGIC or length > size - _END.size:
            raise ValueError("the footer is not of a Parquet file, or the file is encrypted")
        self._begin = size - _END.size - length
        self._data = memoryview(read(self._begin, length + _END.size))
        try:
            self._groups = _group_structure_offsets_in_footer(self._data)
        except IndexError:
            raise ValueError("the footer is cut off") from None

    def wrap_read_with_footer(self, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        """Wrap `read` so that it takes the footer from here: whoever opens the file does not read it once more."""

        def read_at(at: int, size: int) -> bytes:
            begin = at - self._begin
            if begin < 0:
                return read(at, size)
            return bytes(self._data[begin : begin + size])

        return read_at

    def __len__(self) -> int:
        """How many row groups there are."""
        return len(self._groups)

    def columns_of_group(self, group: int) -> list[ColumnChunk]:
        """Return the columns of a row group. Raises ValueError."""
        if group >= len(self._groups):
            raise ValueError(f"the footer has {len(self._groups)} row groups, and no row group {group}")
        reader = CompactThrift(self._data, self._groups[group])
        columns: list[ColumnChunk] = []
        try:
            for field, kind in reader.iterate_fields():
                if field == _COLUMNS and kind == LIST:
                    columns = [_read_column(reader) for _ in reader.structure_offsets()]
                else:
                    reader.skip_value(kind)
        except IndexError:
            raise ValueError("the footer is cut off") from None
        return columns


def _group_structure_offsets_in_footer(data: memoryview) -> list[int]:
    """Locate where each row group begins."""
    reader = CompactThrift(data)
    groups: list[int] = []
    for field, kind in reader.iterate_fields():
        if field != _ROW_GROUPS or kind != LIST:
            reader.skip_value(kind)
            continue
        for offset in reader.structure_offsets():
            groups.append(offset)
            reader.skip_value(STRUCT)
    return groups


def _read_column(reader: CompactThrift) -> ColumnChunk:
    column = None
    for field, kind in reader.iterate_fields():
        if field in (_CRYPTO, _ENCRYPTED):
            raise ValueError("a column is encrypted")
        if field == _METADATA and kind == STRUCT:
            column = _read_column_metadata(reader)
        else:
            reader.skip_value(kind)
    if column is None:
        raise ValueError("a column without metadata")
    return column


def _read_column_metadata(reader: CompactThrift) -> ColumnChunk:
    numbers: dict[int, int] = {}
    depth = 0
    for field, kind in reader.iterate_fields():
        if kind in INTEGER_TYPES:
            numbers[field] = reader.read_signed_varint()
        elif field == _PATH and kind == LIST:
            depth = _read_path_depth(reader)
        else:
            reader.skip_value(kind)
    if not all(field in numbers for field in _REQUIRED):
        raise ValueError("a column with incomplete metadata")
    return ColumnChunk(
        numbers[_TYPE],
        depth,
        numbers[_CODEC],
        numbers[_VALUES],
        numbers[_UNCOMPRESSED],
        numbers[_COMPRESSED],
        numbers[_DATA_PAGE],
        numbers.get(_DICTIONARY_PAGE),
    )


def _read_path_depth(reader: CompactThrift) -> int:
    count, kind = reader.read_list_count_and_kind()
    if kind != BINARY and count:
        raise ValueError("a column with an empty path")
    for _ in range(count):
        reader.skip_value(BINARY)
    return count
