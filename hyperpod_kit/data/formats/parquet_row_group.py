"""A decoded row group: Arrow columns, and single rows of them as Python objects.

`values[row].as_py()` makes a pyarrow scalar first, which takes about half of the time to read a short row. The columns
that most corpora have, numbers and texts without nulls, are read from their buffers instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NUMBER_FORMATS = {
    **{"int8": "b", "int16": "h", "int32": "i", "int64": "q"},
    **{"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"},
    **{"float": "f", "double": "d"},
}
"""Arrow's name of a type -> its format in a memoryview."""

_OFFSET_FORMATS = {"string": "i", "binary": "i", "large_string": "q", "large_binary": "q"}
"""Arrow's name of a type of variable length -> the format of its offsets."""


class RowGroup:
    """A decoded row group. `first`: the number of its first row in the file; `columns`: name and reader of each, which
    returns the value of a row of this row group.

    `remaining`: how many of its rows were not asked for yet, if each is asked for once."""

    __slots__ = ("columns", "first", "number", "remaining", "rows", "size")

    def __init__(self, number: int, first: int, table: Any) -> None:
        self.number = number
        self.first = first
        self.rows = self.remaining = table.num_rows
        self.size = table.nbytes
        self.columns = [
            (name, value_reader(combine_chunks_if_possible(values)))
            for name, values in zip(table.column_names, table.columns, strict=True)
        ]

    def read_row_counting_down(self, number: int) -> dict[str, Any]:
        """Return one row of the file: column -> value."""
        self.remaining -= 1
        offset = number - self.first
        return {name: read(offset) for name, read in self.columns}


def combine_chunks_if_possible(values: Any) -> Any:
    """Combine a column into one array; in pieces where it is too large for one."""
    if values.num_chunks != 1:
        values = values.combine_chunks()
    if getattr(values, "num_chunks", 0) == 1:
        return values.chunk(0)
    return values


def value_reader(values: Any) -> Callable[[int], Any]:
    """Return a function that reads a row's value of an Arrow array or chunked array, as `as_py` does."""
    import pyarrow

    if isinstance(values, pyarrow.ChunkedArray) or values.null_count or values.offset or not len(values):
        return _scalar_reader(values)
    type_name = str(values.type)
    if type_name in _NUMBER_FORMATS:
        return _number_reader(values, _NUMBER_FORMATS[type_name])
    if type_name in _OFFSET_FORMATS:
        return _bytes_reader(values, _OFFSET_FORMATS[type_name], type_name.endswith("string"))
    return _scalar_reader(values)


def _scalar_reader(values: Any) -> Callable[[int], Any]:
    return lambda row: values[row].as_py()


def _number_reader(values: Any, number_format: Any) -> Callable[[int], Any]:
    _, data = values.buffers()
    numbers = memoryview(data)[: len(values) * values.type.byte_width].cast(number_format)
    return numbers.__getitem__


def _bytes_reader(values: Any, offset_format: Any, is_text: bool) -> Callable[[int], Any]:
    _, offset_buffer, data_buffer = values.buffers()
    if data_buffer is None:
        return _scalar_reader(values)
    offsets = memoryview(offset_buffer).cast(offset_format)
    data = memoryview(data_buffer)

    def read_text(row: int) -> str:
        return str(data[offsets[row] : offsets[row + 1]], "utf-8")

    def read_bytes(row: int) -> bytes:
        return bytes(data[offsets[row] : offsets[row + 1]])

    return read_text if is_text else read_bytes
