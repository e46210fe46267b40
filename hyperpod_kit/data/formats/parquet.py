"""Rows of Parquet files, by pyarrow. `start` is the row's number in the file."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import digests, parquet_pages
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

    try:
        facts = _opened(file.read, file.size).metadata
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
        self._opened: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._kept = 0
        self._gone: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._again = 0

    def record(self, file: Any, start: int, length: int) -> dict[str, Any]:
        """One row: column -> value."""
        _, begins = self._file(file)
        number = int(np.searchsorted(begins, start, side="right")) - 1
        group = self._group(file, number)
        row = start - int(begins[number])
        return {name: group.column(name)[row].as_py() for name in group.column_names}

    def _file(self, file: Any) -> tuple[Any, Any]:
        found = self._opened.get(file.path)
        if found is None:
            opened = _opened(lambda at, size: self._files.read(file, at, size), file.size)
            facts = opened.metadata
            rows = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
            found = self._opened[file.path] = (opened, np.concatenate([[0], np.cumsum(rows)[:-1]]))
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

        opened = self._file(file)[0]
        try:
            facts = opened.metadata.row_group(number)
            if self._is_small(file, facts):
                return opened.read_row_group(number, use_threads=False).combine_chunks()
            return self._in_steps(file, number, facts)
        except ReadUnanswered:
            raise
        except (pyarrow.ArrowException, ValueError, MemoryError) as err:
            raise BadRecord(f"{file.path}: row group {number}: {err}") from None
        except OSError as err:
            if err.errno is not None:
                raise
            raise BadRecord(f"{file.path}: row group {number}: {err}") from None  # pyarrow's own word for damage

    def _is_small(self, file: Any, facts: Any) -> bool:
        """Whether it decodes to about what it says. Raises ValueError for what no data is."""
        columns = [facts.column(at) for at in range(facts.num_columns)]
        packed = sum(column.total_compressed_size for column in columns)
        if packed > file.size or min((column.total_compressed_size for column in columns), default=0) < 0:
            raise ValueError(f"{packed:,} bytes in a file of {file.size:,}")
        if facts.total_byte_size > _SMALL + _RATIO * packed:
            raise ValueError(f"{facts.total_byte_size:,} bytes in {packed:,}, as no data has")
        expanded = 0
        for column in columns:
            self._require_honest(file, column)
            if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                # Each value may be as long as the whole dictionary.
                expanded += column.num_values * column.total_uncompressed_size if column.has_dictionary_page else 0
            else:
                expanded += 8 * column.num_values
        return bool(expanded <= _SMALL)

    def _require_honest(self, file: Any, column: Any) -> None:
        """That the pages are not larger than the file's own index says. Raises ValueError."""
        size = column.total_compressed_size
        if size > _WALKED:
            return
        at = column.data_page_offset
        if column.has_dictionary_page:
            at = min(at, column.dictionary_page_offset)
        if at < 0 or at + size > file.size:
            raise ValueError("a column that lies beyond the end of the file")
        pages = parquet_pages.uncompressed(self._files.read(file, at, size))
        if pages > _SMALL // 4 + 2 * column.total_uncompressed_size:
            raise ValueError(f"pages of {pages:,} bytes, where its index says {column.total_uncompressed_size:,}")

    def _in_steps(self, file: Any, number: int, facts: Any) -> Any:
        """A few rows at a time, words of dictionaries as their numbers. Raises ValueError when it becomes too large."""
        import pyarrow
        import pyarrow.parquet

        flat = [
            facts.column(at).path_in_schema
            for at in range(facts.num_columns)
            if facts.column(at).physical_type == "BYTE_ARRAY" and "." not in facts.column(at).path_in_schema
        ]
        source = RangedFile(lambda at, size: self._files.read(file, at, size), file.size)
        opened = pyarrow.parquet.ParquetFile(source, read_dictionary=flat, pre_buffer=False)
        batches, size = [], 0
        most = _SMALL + _EXPANDS * facts.total_byte_size
        for batch in opened.iter_batches(_ROWS, row_groups=[number], use_threads=False):
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise ValueError(
                    f"it decodes to more than {most:,} bytes, and says that it has {facts.total_byte_size:,}"
                )
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
