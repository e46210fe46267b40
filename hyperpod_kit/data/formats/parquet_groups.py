"""The row groups of one Parquet file, each decoded by pyarrow as a whole.

Before that it is worked out how large a row group can become at most. One whose words are repeated so often that it
would not fit into memory is decoded with words as numbers of a dictionary, or a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import parquet_pages
from hyperpod_kit.data.formats.parquet_footer import ColumnChunk, ParquetFooter
from hyperpod_kit.data.formats.parquet_pages import ColumnPage
from hyperpod_kit.data.formats.parquet_row_group import RowGroup
from hyperpod_kit.data.formats.ranged_file import RangedFile
from hyperpod_kit.errors import BadRecord
from hyperpod_kit.system.bounded_thread import CallUnanswered

_RATIO, _SMALL = 1024, 128 << 20
"""Decoded bytes for one of a row group's, beyond the first decoded ones."""

_MAX_EXPANSION = 32
"""Decoded bytes for one that a row group has: words of a dictionary are repeated."""

_ROWS_PER_BATCH = 256
"""Rows that are decoded at a time where a row group might be larger than it says."""

_MAX_READ_BYTES = 16 << 20
"""Bytes of a row group that are read by one call, and kept while it is decoded. New memory costs more than a read."""

_STREAM_BYTES = 1 << 20
"""Bytes that pyarrow reads at a time."""

_DICTIONARY_INDEX_BYTES = 4
"""Bytes of a word's number in a dictionary."""


class ParquetGroups:
    """The row groups of one file. Raises BadRecord for a file that is no Parquet, OSError."""

    def __init__(self, path: str, size: int, read: Callable[[int, int], bytes]) -> None:
        self._path = path
        self._size = size
        try:
            self._footer = ParquetFooter(read, size)
        except ValueError as err:
            raise BadRecord(f"{path}: {err}") from None
        self._bytes = ParquetBytes(self._footer.wrap_read_with_footer(read))
        self._file = open_parquet(self._bytes, size)
        self._numbered: tuple[tuple[int, ...], Any] | None = None
        facts = self._file.metadata
        rows = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
        self.begins: list[int] = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)[:-1]]).tolist()
        """The first row of each row group."""
        self.cached: list[RowGroup | None] = [None] * len(self.begins)
        """Those that are decoded."""

    def largest_group_rows_and_bytes(self) -> tuple[int, int]:
        """Return (rows, bytes when it is decoded) of the largest row group, as the file has it; (0, 0) where it has
        none."""
        facts = self._file.metadata
        groups = (facts.row_group(number) for number in range(facts.num_row_groups))
        return max(((group.num_rows, group.total_byte_size) for group in groups), default=(0, 0))

    def decode_group(self, number: int) -> RowGroup:
        """Decode a row group. Raises BadRecord for one that is not what it says, or says what no data is; OSError."""
        import pyarrow

        try:
            rows = self._file.metadata.row_group(number).num_rows
            table = self._read_checked_table(number)
            if table.num_rows != rows:
                raise ValueError(f"it has {table.num_rows} rows, but its metadata gives {rows}")
            if len(set(table.column_names)) != len(table.column_names):
                raise ValueError("two columns have the same name")
        except CallUnanswered:
            raise
        except (pyarrow.ArrowException, ValueError, MemoryError) as err:
            raise BadRecord(f"{self._path}: row group {number}: {err}") from None
        except OSError as err:
            if err.errno is not None:
                raise
            raise BadRecord(f"{self._path}: row group {number}: {err}") from None  # pyarrow's own word for damage
        return RowGroup(number, self.begins[number], table)

    def _read_checked_table(self, number: int) -> Any:
        columns = self._footer.columns_of_group(number)
        claimed = self._file.metadata.row_group(number).total_byte_size
        packed = sum(column.compressed for column in columns)
        if packed > self._size or min((column.compressed for column in columns), default=0) < 0:
            raise ValueError(f"{packed:,} bytes in a file of {self._size:,}")
        if claimed > _SMALL + _RATIO * packed:
            raise ValueError(f"{claimed:,} bytes in {packed:,}, more than real data has")
        if any(
            column.first_page_offset < 0 or column.first_page_offset + column.compressed > self._size
            for column in columns
        ):
            raise ValueError("a column that lies beyond the end of the file")
        with self._bytes.caching_columns_if_small(columns, packed):
            most = _SMALL + _MAX_EXPANSION * packed
            pages = [self._read_checked_page_headers(column) for column in columns]
            sizes = [self._max_decoded_size(*column_pages, most) for column_pages in zip(columns, pages, strict=True)]
            if sum(sizes) <= most:
                return self._file.read_row_group(number, use_threads=False)
            numbered = tuple(
                at
                for at, column in enumerate(columns)
                if sizes[at] > column.uncompressed and parquet_pages.can_stay_dictionary_encoded(column, pages[at])
            )
            for at in numbered:
                sizes[at] = 2 * columns[at].uncompressed + 2 * _DICTIONARY_INDEX_BYTES * columns[at].values
            file = self._open_with_dictionary_columns(numbered)
            if sum(sizes) <= most:
                table = file.read_row_group(number, use_threads=False)
                return decode_dictionaries_within(table, self._file.schema_arrow, most - sum(sizes))
            return read_group_in_batches_limiting_size(file, number, claimed)

    def _open_with_dictionary_columns(self, columns: tuple[int, ...]) -> Any:
        """Open the file so that words of these columns stay numbers of a dictionary."""
        if self._numbered is None or self._numbered[0] != columns:
            self._numbered = columns, open_parquet(self._bytes, self._size, columns)
        return self._numbered[1]

    def _read_checked_page_headers(self, column: ColumnChunk) -> list[ColumnPage]:
        """Read the pages of a column. Raises ValueError for pages that are larger than the file's own index says."""
        end = column.first_page_offset + column.compressed
        pages = list(parquet_pages.read_page_headers(self._bytes.read_range, column.first_page_offset, end))
        plain = sum(page.plain for page in pages)
        if plain > _SMALL // 4 + 2 * column.uncompressed:
            raise ValueError(f"pages of {plain:,} bytes, but its index gives {column.uncompressed:,}")
        return pages

    def _max_decoded_size(self, column: ColumnChunk, pages: list[ColumnPage], scan_words_above: int) -> int:
        return parquet_pages.max_decoded_size(column, pages, self._bytes.read_range, scan_words_above)


class ParquetBytes:
    """Ranges of a file; those of a row group are read once, though they are looked at before they are decoded."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._begin = 0
        self._cached = memoryview(b"")

    @contextmanager
    def caching_columns_if_small(self, columns: list[ColumnChunk], packed: int) -> Iterator[None]:
        """Read the bytes of these columns into memory, where they are few enough and lie together."""
        begin = min((column.first_page_offset for column in columns), default=0)
        end = max((column.first_page_offset + column.compressed for column in columns), default=0)
        if end - begin <= min(_MAX_READ_BYTES, 2 * packed):
            self._begin, self._cached = begin, memoryview(self._read(begin, end - begin))
        try:
            yield
        finally:
            self._cached = memoryview(b"")

    def read_range(self, at: int, size: int) -> bytes | memoryview:
        """Return a range, without a copy where it is in memory."""
        begin = at - self._begin
        if begin >= 0 and begin + size <= len(self._cached):
            return self._cached[begin : begin + size]
        return self._read(at, size)

    def __call__(self, at: int, size: int) -> bytes:
        return bytes(self.read_range(at, size))


def open_parquet(read: Callable[[int, int], bytes], size: int, dictionary_columns: Sequence[int] = ()) -> Any:
    """Open a file by pyarrow. `dictionary_columns`: columns whose values stay numbers of a dictionary."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(
        RangedFile(read, size), read_dictionary=dictionary_columns or None, pre_buffer=False, buffer_size=_STREAM_BYTES
    )


def decode_dictionaries_within(table: Any, schema: Any, max_bytes: int) -> Any:
    """Decode the dictionary-encoded columns that `schema` has as plain values, as far as `max_bytes` allows."""
    import pyarrow.compute

    for at, (field, values) in enumerate(zip(schema, table.columns, strict=True)):
        if values.type == field.type:
            continue
        for part in values.chunks:
            lengths = pyarrow.compute.binary_length(part.dictionary).take(part.indices)
            max_bytes -= (pyarrow.compute.sum(lengths).as_py() or 0) + 2 * _DICTIONARY_INDEX_BYTES * len(part)
        if max_bytes < 0:
            break
        table = table.set_column(at, field, values.cast(field.type))
    return table


def read_group_in_batches_limiting_size(file: Any, number: int, claimed_bytes: int) -> Any:
    """Read a few rows at a time. Raises ValueError when it becomes too large."""
    import pyarrow

    batches, size = [], 0
    most = _SMALL + _MAX_EXPANSION * claimed_bytes
    for batch in file.iter_batches(_ROWS_PER_BATCH, row_groups=[number], use_threads=False):
        batches.append(batch)
        size += batch.nbytes
        if size > most:
            raise ValueError(f"it decodes to more than {most:,} bytes, but its metadata gives {claimed_bytes:,}")
    return pyarrow.Table.from_batches(batches, file.schema_arrow).combine_chunks()
