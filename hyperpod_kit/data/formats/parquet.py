"""Rows of Parquet files, by pyarrow. `start` is the row's number in the file."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hyperpod_kit.data.formats.parquet_footer import ParquetFooter
from hyperpod_kit.data.formats.parquet_groups import ParquetGroups, open_parquet
from hyperpod_kit.data.formats.parquet_row_group import RowGroup
from hyperpod_kit.data.formats.table import RecordReader, Scan, require_plausible_sample_count
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles
from hyperpod_kit.system.bounded_thread import CallUnanswered

log = logging.getLogger("hyperpod_kit.data")

_MAX_FILES = 64
_MAX_EVICTED = 1024
_SPENT_MEMORY_DIVISOR = 4
"""The part of the memory in which row groups stay that have given all their rows."""
_MAX_REPEATS_UNWARNED = 16
"""Row groups that are decoded a second time, until it is said."""


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Scan every row; `length` is a row's share of its row group. Raises ValueError for what is no Parquet, OSError."""
    pieces = digests.digests_of_pieces(file.read, file.size, advance)
    import pyarrow

    footer = ParquetFooter(file.read, file.size)
    for number in range(len(footer)):
        footer.columns_of_group(number)
    try:
        facts = open_parquet(footer.wrap_read_with_footer(file.read), file.size).metadata
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    except CallUnanswered:
        raise
    except (pyarrow.ArrowException, OSError) as err:
        raise ValueError(str(err)) from None
    counts = [group.num_rows for group in groups]
    if any(count < 0 for count in counts):
        raise ValueError("a row group of less than no rows")
    require_plausible_sample_count(sum(counts), file.size)
    rows = np.array(counts, np.int64)
    each = np.array([group.total_byte_size // max(1, group.num_rows) for group in groups], np.int64)
    return Scan(
        np.arange(int(rows.sum()), dtype=np.uint64),
        np.repeat(np.maximum(each, 1), rows).astype(np.uint32),
        digests.digest_of_file(pieces, file.size),
    )


class ParquetReader:
    """Rows as dicts; the row groups used last are kept decoded, `memory` bytes of them."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._memory = memory
        self._opened: OrderedDict[str, ParquetGroups] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], RowGroup] = OrderedDict()
        self._cached_bytes = 0
        self._evicted: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._decoded_again_count = 0

    def largest_group_rows_and_bytes(self, file: Any) -> tuple[int, int]:
        """Return (rows, bytes) of the largest row group of a file."""
        return self._cached_file_groups(file).largest_group_rows_and_bytes()

    def record(self, file: Any, start: int, length: int) -> dict[str, Any]:
        """Read one row: column -> value."""
        number = bisect_right(self._cached_file_groups(file).begins, start) - 1
        return self._cached_group(file, number).read_row_counting_down(start)

    def records(
        self, file_by_number: Callable[[int], Any], file_numbers: Numbers, starts: Numbers, lengths: Numbers
    ) -> Iterator[dict[str, Any]]:
        """Read several rows, in the order asked for."""
        portions = np.cumsum(lengths) // max(1, self._memory)  # rows are held until those before them are there
        ends = [*(np.flatnonzero(np.diff(portions)) + 1).tolist(), len(starts)]
        begin = 0
        for end in ends:
            yield from self._read_rows(file_by_number, file_numbers[begin:end].tolist(), starts[begin:end].tolist())
            begin = end

    def _read_rows(
        self, file_by_number: Callable[[int], Any], file_numbers: list[int], starts: list[int]
    ) -> list[dict[str, Any]]:
        groups_of_files = {
            number: self._cached_file_groups(file_by_number(number)) for number in dict.fromkeys(file_numbers)
        }
        lookup = {number: (file.begins, file.cached) for number, file in groups_of_files.items()}
        rows = []
        finished: list[tuple[int, RowGroup]] = []
        for number, start in zip(file_numbers, starts, strict=True):
            begins, kept = lookup[number]
            group = kept[bisect_right(begins, start) - 1]
            if group is None:
                return self._rows_by_groups(file_by_number, file_numbers, starts, groups_of_files)
            group.remaining -= 1
            if not group.remaining:
                finished.append((number, group))
            offset = start - group.first
            rows.append({name: read(offset) for name, read in group.columns})
        for number, group in finished:
            self._reset_read_group_and_drop_if_cache_large(file_by_number(number).path, group)
        return rows

    def _rows_by_groups(
        self,
        file_by_number: Callable[[int], Any],
        file_numbers: list[int],
        starts: list[int],
        groups_of_files: dict[int, ParquetGroups],
    ) -> list[dict[str, Any]]:
        """Group rows by row group, those first that are decoded, so that each is decoded once for all of these
        rows, also where memory has no room for two."""
        places: dict[tuple[int, int], list[int]] = {}
        for number_of_row, (number, start) in enumerate(zip(file_numbers, starts, strict=True)):
            places.setdefault((number, bisect_right(groups_of_files[number].begins, start) - 1), []).append(
                number_of_row
            )
        rows: list[dict[str, Any]] = [{}] * len(starts)
        for number, group_number in sorted(
            places, key=lambda group_key: groups_of_files[group_key[0]].cached[group_key[1]] is None
        ):
            group = self._cached_group(file_by_number(number), group_number)
            for number_of_row in places[number, group_number]:
                rows[number_of_row] = group.read_row_counting_down(starts[number_of_row])
            if group.remaining <= 0:
                self._reset_read_group_and_drop_if_cache_large(file_by_number(number).path, group)
        return rows

    def _cached_file_groups(self, file: Any) -> ParquetGroups:
        groups = self._opened.get(file.path)
        if groups is None:
            read = functools.partial(self._files.read, file)
            groups = self._opened[file.path] = ParquetGroups(file.path, file.size, read)
            if len(self._opened) > _MAX_FILES:
                self._opened.popitem(last=False)
        self._opened.move_to_end(file.path)
        return groups

    def _cached_group(self, file: Any, number: int) -> RowGroup:
        """Decode and keep a row group; those used longest ago go where there is no room."""
        key = (file.path, number)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._cached_file_groups(file).decode_group(number)
            self._cached_bytes += group.size
            if key in self._evicted:
                self._count_and_warn_of_decoding_again(group)
            while self._cached_bytes > self._memory and len(self._groups) > 1:
                self._evict_oldest()
        else:
            self._groups.move_to_end(key)
        self._cached_file_groups(file).cached[number] = group
        return group

    def _reset_read_group_and_drop_if_cache_large(self, path: str, group: RowGroup) -> None:
        """Release a row group all of whose rows were read.

        New memory costs more than to decode it, so what it takes is for the next one, unless all of it is little.
        """
        group.remaining = group.rows
        if (
            self._cached_bytes > self._memory // _SPENT_MEMORY_DIVISOR
            and self._groups.get((path, group.number)) is group
        ):
            self._drop_group(path, group.number)

    def _drop_group(self, path: str, number: int) -> None:
        self._cached_bytes -= self._groups.pop((path, number)).size
        if path in self._opened:
            self._opened[path].cached[number] = None

    def _evict_oldest(self) -> None:
        """Evict the row group that was used longest ago."""
        key = next(iter(self._groups))
        self._drop_group(*key)
        self._evicted[key] = None
        if len(self._evicted) > _MAX_EVICTED:
            self._evicted.popitem(last=False)

    def _count_and_warn_of_decoding_again(self, group: RowGroup) -> None:
        """Count row groups decoded again, and warn once: nothing fails, and training waits for what was thrown away."""
        self._decoded_again_count += 1
        if self._decoded_again_count == _MAX_REPEATS_UNWARNED:
            lanes = max(1, self._memory // max(1, 2 * group.size))
            log.warning(
                "Parquet row groups of about %.1f MiB are decoded repeatedly, because memory=%d holds too few of "
                "them: give the loader order=ShuffledOrder(len(data), seed, block=%d, lanes=%d), or more memory",
                group.size / (1 << 20),
                self._memory,
                group.rows,
                lanes,
            )


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return ParquetReader(files, memory)
