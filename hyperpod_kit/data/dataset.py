"""The samples of an index by their numbers: a map-style data set with a length, for torch's DataLoader or none.

A program makes an `IndexedDataset` of a `SampleIndex`; an `ElasticLoader` calls its `__getitems__`, `read_by` and
`ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import json_lines
from hyperpod_kit.data.formats.lines import LineReader, has_json_name
from hyperpod_kit.data.formats.parquet import ParquetReader
from hyperpod_kit.data.formats.table import RecordReader, import_format_module
from hyperpod_kit.data.index.layout import IndexedFile, SampleIndex
from hyperpod_kit.data.index.records import decode_record, make_bad_record_error
from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.numbers.deduplication import unique_with_counts
from hyperpod_kit.data.order.block_cuts import BlockCuts
from hyperpod_kit.data.order.default_order import RowGroups
from hyperpod_kit.data.reading import freed_memory
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.data.reading.retrying_reader import RETRY_SECONDS, RetryingFiles
from hyperpod_kit.errors import BadRecord

MEMORY_BYTES = 256 << 20
_MAX_KNOWN_FILES = 4096
_LINE_FORMATS = ("lines",)
_ROW_FORMATS = ("parquet",)
_PREFETCHED_FORMATS = ("lines", "tar", "whole")
_HINT_BITS = 17
"""Bits of the distance within which one hint to the kernel is enough: less than a block of the default order has."""
_MAX_HINTS = 8192
_RANGE_FORMATS = ("lines", "tar", "whole")


class IndexedDataset:
    """The samples of an index, decoded: sample n is `dataset[n]`.

    Lines are decoded as JSON, or as text where the file's name does not speak of JSON; a row of Parquet is a dict, a
    sample of a tar a dict from ending to bytes, a whole file its bytes.

    Reading raises BadRecord for a record that cannot be decoded, ChangedFile for a file that is not the one that was
    indexed, and DataUnavailable when bytes cannot be read for `patience` seconds, and from `elsewhere` neither.

    Args:
        index: The index of the files.
        transform: Called with each sample; what it returns takes the sample's place. None: samples stay as they are.
        decode: Whether samples are decoded. False: lines stay bytes.
        memory: How many bytes of decompressed or decoded data each process keeps; of files with short lines, up to 128
            MiB of the files. Default: 256 MiB.
        patience: For how many seconds a file is read again, by its path, while its mount is repaired; then it is read
            from `elsewhere`. Default: 300.
        answer: After how many seconds without a response a mount counts as failed. Default: 30.
        elsewhere: Where directories lie too: `{"/mnt/corpus": "s3://bucket/corpus"}`. None: nowhere.
        cache: A directory of a local disk for what comes from `s3://`. None: no cache.

    Example:
        With an `index`, a `SampleIndex` of lines of JSON:

            from hyperpod_kit.data import IndexedDataset

            dataset = IndexedDataset(index, transform=lambda sample: sample["text"])
            print(len(dataset), dataset[0])
    """

    def __init__(
        self,
        index: SampleIndex,
        *,
        transform: Callable[[Any], Any] | None = None,
        decode: bool = True,
        memory: int = MEMORY_BYTES,
        patience: float = RETRY_SECONDS,
        answer: float = REPLY_SECONDS,
        elsewhere: Mapping[str, str] | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        self.index = index
        self._transform = transform
        self._decode = decode
        self._memory = memory
        self._cuts = BlockCuts(index)
        self._among = 1
        self._reading = (patience, dict(elsewhere or {}), cache, answer)
        self._files = self._make_retrying_files()
        self._readers: dict[str, RecordReader] = {}
        self._indexed_files: dict[int, IndexedFile] = {}
        self._hinted: dict[int, None] = {}

    decodes = True
    """Its numbers are those of records, each of which is good or bad by itself."""

    def __len__(self) -> int:
        return self.index.samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read several samples.

        Args:
            numbers: Their numbers.

        Returns:
            The samples, in that order.

        Raises:
            IndexError: There is no such sample.
            BadRecord: A record cannot be decoded.
            ChangedFile: A file is not the one that was indexed.
            DataUnavailable: Bytes cannot be read from storage, and everything was tried.
        """
        requested = np.asarray(numbers, dtype=np.int64)
        numbers_of_files, starts, lengths = self.index.where(requested)
        if self.index.formats == _LINE_FORMATS:
            lines = self._reader_for_format("lines")
            assert isinstance(lines, LineReader)
            lines_of_samples = lines.records(self._indexed_file, requested, numbers_of_files, starts, lengths)
            if self._decode and all(
                has_json_name(self._indexed_file(number).path) for number in set(numbers_of_files.tolist())
            ):
                return self._transform_all(
                    self._decode_json_lines(lines_of_samples, numbers_of_files, requested, starts)
                )
            return self._decode_and_transform(lines_of_samples, numbers_of_files, requested, starts)
        if self.index.formats == _ROW_FORMATS:
            rows = self._reader_for_format("parquet")
            assert isinstance(rows, ParquetReader)
            return self._transform_all(rows.records(self._indexed_file, numbers_of_files, starts, lengths))
        files = [self._indexed_file(number) for number in numbers_of_files.tolist()]
        ranges = list(zip(files, starts.tolist(), lengths.tolist(), strict=True))
        if len(ranges) > 1 and self._files.has_slow_sources:
            self._files.prefetch_ranges(
                range_of_file for range_of_file in ranges if range_of_file[0].format in _RANGE_FORMATS
            )
        # One is done with before the next one is read: a transform may make little of much.
        records = (self._reader_for_format(file.format).record(file, start, length) for file, start, length in ranges)
        return self._decode_and_transform(records, numbers_of_files, requested, starts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None, "_readers": {}, "_indexed_files": {}, "_hinted": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = self._make_retrying_files()

    def _make_retrying_files(self) -> RetryingFiles:
        freed_memory.keep_freed_memory()
        patience, elsewhere, cache, reply_timeout = self._reading
        files = RetryingFiles(patience, elsewhere, cache, reply_timeout=reply_timeout)
        files.cuts, files.among = self._cuts, self._among
        return files

    def read_by(self, block: int) -> None:
        """Set how many samples are read together from now on; a loader calls it with the block of its order.

        Args:
            block: How many. Without a call it is the block of the default order.
        """
        self._cuts.set_samples_per_block(block)

    def one_of(self, sets: int) -> None:
        """Share the limits of open files and memory with the other sets of a mix.

        Args:
            sets: How many sets the mix has.
        """
        self._among = self._files.among = sets
        self._readers.clear()

    def row_groups(self) -> RowGroups | None:
        """Read from the footer of the first file how much of Parquet is decoded at once.

        Returns:
            Rows and bytes of the largest row group, and the memory for them; None where the first file has none, or
            where samples are read one by one.

        Raises:
            DataUnavailable: The file cannot be read for now, and everything was tried.
            OSError: The file cannot be read.
        """
        if self.index.formats != _ROW_FORMATS or not self.index.samples:
            return None
        number = int(np.searchsorted(self.index.firsts, 0, side="right")) - 1
        rows = self._reader_for_format("parquet")
        assert isinstance(rows, ParquetReader)
        try:
            count, size = rows.largest_group_rows_and_bytes(self._indexed_file(number))
        except BadRecord:
            return None
        return RowGroups(count, size, self._memory)

    @property
    def bytes_read(self) -> int:
        """How many bytes this process has read from the sources."""
        return self._files.bytes_read

    def ahead(self, numbers: Numbers) -> None:
        """Ask the kernel to fetch samples that this process reads soon: of lines, tars and whole files.

        Only files on the machine's own disks are fetched: to open one on a mount may take long, and the trainer would
        wait.

        Args:
            numbers: The numbers of the samples.
        """
        if set(self.index.formats) - set(_PREFETCHED_FORMATS) or any(
            source.startswith("s3://") for source in self.index.sources
        ):
            return
        files, starts, lengths = self.index.where(numbers)
        if "lines" in self.index.formats:
            lines = self._reader_for_format("lines")
            assert isinstance(lines, LineReader)
            lines.windows.set_expected_samples(numbers, files, lengths)
        if self._files.has_slow_sources:
            return
        keys, first, _ = unique_with_counts((files << 44) | (starts >> _HINT_BITS))
        for key, file, start, length in zip(
            keys.tolist(), files[first].tolist(), starts[first].tolist(), lengths[first].tolist(), strict=True
        ):
            if key not in self._hinted:
                self._hinted[key] = None
                begin = start >> _HINT_BITS << _HINT_BITS
                self._files.prefetch_range(
                    self._indexed_file(file), begin, max(1 << _HINT_BITS, start + length - begin)
                )
        for hinted in list(self._hinted)[:-_MAX_HINTS]:
            del self._hinted[hinted]

    def _indexed_file(self, number: int) -> IndexedFile:
        indexed_file = self._indexed_files.get(number)
        if indexed_file is None:
            if len(self._indexed_files) >= _MAX_KNOWN_FILES:
                self._indexed_files.clear()
            indexed_file = self._indexed_files[number] = self.index.file(number)
        return indexed_file

    def _reader_for_format(self, format_name: str) -> RecordReader:
        reader = self._readers.get(format_name)
        if reader is None:
            reader = self._readers[format_name] = import_format_module(format_name).reader(self._files, self._memory)
        return reader

    def _decode_and_transform(
        self, records: Iterable[Any], files: Numbers, numbers: Numbers, starts: Numbers
    ) -> list[Any]:
        """Decode records where this data set decodes, and transform them."""
        if self._decode:
            indexed_files = map(self._indexed_file, files.tolist())
            records = map(decode_record, records, indexed_files, numbers.tolist(), starts.tolist())
        return self._transform_all(records)

    def _decode_json_lines(
        self, lines: Iterable[bytes], files: Numbers, numbers: Numbers, starts: Numbers
    ) -> Iterator[Any]:
        """Yield each line decoded as JSON. Raises BadRecord. `decode_record` decides by each file's name instead."""
        decode = json_lines.decode
        for at, line in enumerate(lines):
            try:
                sample = decode(line)
            except (ValueError, RecursionError) as err:
                raise make_bad_record_error(
                    err, self._indexed_file(int(files[at])), int(numbers[at]), int(starts[at])
                ) from None
            yield sample

    def _transform_all(self, samples: Iterable[Any]) -> list[Any]:
        if self._transform is None:
            return list(samples)
        return [self._transform(sample) for sample in samples]
