"""Rows of Parquet files, by pyarrow. `start` is the row's number in the file."""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import digests, parquet_pages
from hyperpod_kit.data.formats.parquet_footer import ColumnChunk, ParquetFooter
from hyperpod_kit.data.formats.ranged_file import RangedFile
from hyperpod_kit.data.formats.table import RecordReader, Scan, require_plausible
from hyperpod_kit.data.reading.bounded import ReadUnanswered
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles
from hyperpod_kit.errors import BadRecord

log = logging.getLogger("hyperpod_kit.data")

_MOST_FILES = 64
_GONE_KNOWN = 1024
_AGAIN = 16
"""Row groups that are decoded a second time, until it is said."""


_RATIO, _SMALL = 1024, 128 << 20
"""Decoded bytes for one of a row group's, beyond the first decoded ones."""

_EXPANDS = 32
"""Decoded bytes for one that a row group says it has: words of a dictionary are repeated."""

_ROWS = 256
"""Rows that are decoded at a time where a row group might be larger than it says."""

_WALKED = 64 << 20
"""Bytes of a column chunk of which the pages are looked at before they are decoded."""


def _opened(read: Callable[[int, int], bytes], size: int) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(RangedFile(read, size))


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Every row; `length` is a row's share of its row group. Raises ValueError for what is no Parquet, OSError."""
    pieces = digests.of_pieces(file.read, file.size, advance)
    import pyarrow

    footer = ParquetFooter(file.read, file.size)
    for number in range(len(footer)):
        footer.columns(number)
    try:
        facts = _opened(footer.serving(file.read), file.size).metadata
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    except ReadUnanswered:
        raise
    except (pyarrow.ArrowException, OSError) as err:
        raise ValueError(str(err)) from None
    counts = [group.num_rows for group in groups]
    if any(count < 0 for count in counts):
        raise ValueError("a row group of less than no rows")
    require_plausible(sum(counts), file.size)
    rows = np.array(counts, np.int64)
    each = np.array([group.total_byte_size // max(1, group.num_rows) for group in groups], np.int64)
    return Scan(
        np.arange(int(rows.sum()), dtype=np.uint64),
        np.repeat(np.maximum(each, 1), rows).astype(np.uint32),
        digests.of_file(pieces, file.size),
    )


class ParquetReader:
    """Rows as dicts; the row groups used last are kept decoded, `memory` bytes of them."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._memory = memory
        self._opened: OrderedDict[str, tuple[Any, Any, ParquetFooter]] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._kept = 0
        self._gone: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._again = 0

    def record(self, file: Any, start: int, length: int) -> dict[str, Any]:
        """One row: column -> value."""
        _, begins, _ = self._file(file)
        number = int(np.searchsorted(begins, start, side="right")) - 1
        group = self._group(file, number)
        row = start - int(begins[number])
        return {name: group.column(name)[row].as_py() for name in group.column_names}

    def _file(self, file: Any) -> tuple[Any, Any, ParquetFooter]:
        found = self._opened.get(file.path)
        if found is None:
            read = functools.partial(self._files.read, file)
            try:
                footer = ParquetFooter(read, file.size)
            except ValueError as err:
                raise BadRecord(f"{file.path}: {err}") from None
            opened = _opened(footer.serving(read), file.size)
            facts = opened.metadata
            rows = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
            found = self._opened[file.path] = (opened, np.concatenate([[0], np.cumsum(rows)[:-1]]), footer)
            if len(self._opened) > _MOST_FILES:
                self._opened.popitem(last=False)
        self._opened.move_to_end(file.path)
        return found

    def _group(self, file: Any, number: int) -> Any:
        key = (file.path, number)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._decoded(file, number)
            self._kept += found.nbytes
            if key in self._gone:
                self._decoded_again(found)
            while self._kept > self._memory and len(self._groups) > 1:
                let_go, group = self._groups.popitem(last=False)
                self._kept -= group.nbytes
                self._gone[let_go] = None
                if len(self._gone) > _GONE_KNOWN:
                    self._gone.popitem(last=False)
        else:
            self._groups.move_to_end(key)
        return found

    def _decoded(self, file: Any, number: int) -> Any:
        """A row group. Raises BadRecord for one that is not what it says, or says what no data is; OSError."""
        import pyarrow

        opened, _, footer = self._file(file)
        try:
            facts = opened.metadata.row_group(number)
            group = self._read(file, number, facts.total_byte_size, footer.columns(number))
            if group.num_rows != facts.num_rows:
                raise ValueError(f"it has {group.num_rows} rows, and says that it has {facts.num_rows}")
            return group
        except ReadUnanswered:
            raise
        except (pyarrow.ArrowException, ValueError, MemoryError) as err:
            raise BadRecord(f"{file.path}: row group {number}: {err}") from None
        except OSError as err:
            if err.errno is not None:
                raise
            raise BadRecord(f"{file.path}: row group {number}: {err}") from None  # pyarrow's own word for damage

    def _read(self, file: Any, number: int, claimed: int, columns: list[ColumnChunk]) -> Any:
        if self._is_small(file, claimed, columns):
            opened = self._file(file)[0]
            return opened.read_row_group(number, use_threads=False).combine_chunks()
        return self._in_steps(file, number, claimed, columns)

    def _is_small(self, file: Any, claimed: int, columns: list[ColumnChunk]) -> bool:
        """Whether it decodes to about the `claimed` bytes. Raises ValueError for what no data is."""
        packed = sum(column.compressed for column in columns)
        if packed > file.size or min((column.compressed for column in columns), default=0) < 0:
            raise ValueError(f"{packed:,} bytes in a file of {file.size:,}")
        if claimed > _SMALL + _RATIO * packed:
            raise ValueError(f"{claimed:,} bytes in {packed:,}, as no data has")
        expanded = 0
        for column in columns:
            self._require_honest(file, column)
            if not column.has_words:
                expanded += 8 * column.values
            elif column.dictionary_page is not None:
                expanded += column.values * column.uncompressed
        return expanded <= _SMALL

    def _require_honest(self, file: Any, column: ColumnChunk) -> None:
        """That the pages are not larger than the file's own index says. Raises ValueError."""
        if column.compressed > _WALKED:
            return
        if column.begin < 0 or column.begin + column.compressed > file.size:
            raise ValueError("a column that lies beyond the end of the file")
        pages = parquet_pages.uncompressed(self._files.read(file, column.begin, column.compressed))
        if pages > _SMALL // 4 + 2 * column.uncompressed:
            raise ValueError(f"pages of {pages:,} bytes, where its index says {column.uncompressed:,}")

    def _in_steps(self, file: Any, number: int, claimed: int, columns: list[ColumnChunk]) -> Any:
        """A few rows at a time, words of dictionaries as their numbers. Raises ValueError when it becomes too large."""
        import pyarrow
        import pyarrow.parquet

        flat = [at for at, column in enumerate(columns) if column.is_text]
        source = RangedFile(lambda at, size: self._files.read(file, at, size), file.size)
        opened = pyarrow.parquet.ParquetFile(source, read_dictionary=flat, pre_buffer=False)
        batches, size = [], 0
        most = _SMALL + _EXPANDS * claimed
        for batch in opened.iter_batches(_ROWS, row_groups=[number], use_threads=False):
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise ValueError(f"it decodes to more than {most:,} bytes, and says that it has {claimed:,}")
        return pyarrow.Table.from_batches(batches, opened.schema_arrow).combine_chunks()

    def _decoded_again(self, group: Any) -> None:
        """Say it once: nothing fails, and training waits for what was thrown away."""
        self._again += 1
        if self._again == _AGAIN:
            lanes = max(1, self._memory // max(1, 2 * group.nbytes))
            log.warning(
                "row groups of Parquet of about %.1f MiB are decoded again and again, as memory=%d holds too few of "
                "them: give the loader order=ShuffledOrder(len(data), seed, block=%d, lanes=%d), or more memory",
                group.nbytes / (1 << 20),
                self._memory,
                group.num_rows,
                lanes,
            )


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return ParquetReader(files, memory)
