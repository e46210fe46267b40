"""Rows of Parquet files, by pyarrow. `start` is the row's number in the file."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import digests
from hyperpod_kit.data.formats.ranged_file import RangedFile
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading.bounded import ReadUnanswered
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles

log = logging.getLogger("hyperpod_kit.data")

_MOST_FILES = 64
_GONE_KNOWN = 1024
_AGAIN = 16
"""Row groups that are decoded a second time, until it is said."""


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
    rows = np.array([group.num_rows for group in groups], np.int64)
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
            found = self._groups[key] = self._file(file)[0].read_row_group(number, use_threads=False).combine_chunks()
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
