"""The samples of an index by their numbers: a map-style data set with a length, for torch's DataLoader or none.

A program makes an `IndexedDataset` of a `SampleIndex`; an `ElasticLoader` calls its `__getitems__`, `read_by` and
`ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.block_cuts import BlockCuts
from hyperpod_kit.data.default_order import RowGroups
from hyperpod_kit.data.distinct import described
from hyperpod_kit.data.formats import json_lines
from hyperpod_kit.data.formats.lines import LineReader, is_json
from hyperpod_kit.data.formats.parquet import ParquetReader
from hyperpod_kit.data.formats.table import RecordReader, module_of
from hyperpod_kit.data.index.layout import IndexedFile, SampleIndex
from hyperpod_kit.data.reading import freed_memory
from hyperpod_kit.data.reading.bounded import ANSWER
from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.data.reading.patient import PATIENCE, PatientFiles
from hyperpod_kit.errors import BadRecord

MEMORY = 256 << 20
_FILES_REMEMBERED = 4096
_LINES = ("lines",)
_ROWS = ("parquet",)
_AHEAD = ("lines", "tar", "whole")
_NEAR = 17
"""Bits of the distance within which one hint to the kernel is enough: less than a block of the default order has."""
_HINTS_KEPT = 8192
_BY_RANGE = ("lines", "tar", "whole")


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
        memory: int = MEMORY,
        patience: float = PATIENCE,
        answer: float = ANSWER,
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
        self._files = self._new_files()
        self._readers: dict[str, RecordReader] = {}
        self._known: dict[int, IndexedFile] = {}
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
        asked = np.asarray(numbers, dtype=np.int64)
        numbers_of_files, starts, lengths = self.index.where(asked)
        if self.index.formats == _LINES:
            lines = self._reader("lines")
            assert isinstance(lines, LineReader)
            found = lines.records(self._file, asked, numbers_of_files, starts, lengths)
            if self._decode and all(is_json(self._file(number).path) for number in set(numbers_of_files.tolist())):
                return self._transformed(self._json(found, numbers_of_files, asked, starts))
            return self._made(found, numbers_of_files, asked, starts)
        if self.index.formats == _ROWS:
            rows = self._reader("parquet")
            assert isinstance(rows, ParquetReader)
            return self._transformed(rows.records(self._file, numbers_of_files, starts, lengths))
        files = [self._file(number) for number in numbers_of_files.tolist()]
        ranges = list(zip(files, starts.tolist(), lengths.tolist(), strict=True))
        if len(ranges) > 1 and self._files.by_others:
            self._files.prepare(one for one in ranges if one[0].format in _BY_RANGE)
        # One is done with before the next one is read: a transform may make little of much.
        records = (self._reader(file.format).record(file, start, length) for file, start, length in ranges)
        return self._made(records, numbers_of_files, asked, starts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None, "_readers": {}, "_known": {}, "_hinted": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = self._new_files()

    def _new_files(self) -> PatientFiles:
        freed_memory.keep()
        patience, elsewhere, cache, answer = self._reading
        files = PatientFiles(patience, elsewhere, cache, answer=answer)
        files.cuts, files.among = self._cuts, self._among
        return files

    def read_by(self, block: int) -> None:
        """Read so many samples together from now on; a loader calls it with the block of its order.

        Args:
            block: How many. Without a call it is the block of the default order.
        """
        self._cuts.read_by(block)

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
        if self.index.formats != _ROWS or not self.index.samples:
            return None
        number = int(np.searchsorted(self.index.firsts, 0, side="right")) - 1
        rows = self._reader("parquet")
        assert isinstance(rows, ParquetReader)
        try:
            count, size = rows.largest_group(self._file(number))
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
        if set(self.index.formats) - set(_AHEAD) or any(source.startswith("s3://") for source in self.index.sources):
            return
        files, starts, lengths = self.index.where(numbers)
        if "lines" in self.index.formats:
            lines = self._reader("lines")
            assert isinstance(lines, LineReader)
            lines.windows.expect(numbers, files, lengths)
        if self._files.by_others:
            return
        places, first, _ = described((files << 44) | (starts >> _NEAR))
        for place, file, start, length in zip(
            places.tolist(), files[first].tolist(), starts[first].tolist(), lengths[first].tolist(), strict=True
        ):
            if place not in self._hinted:
                self._hinted[place] = None
                begin = start >> _NEAR << _NEAR
                self._files.will_need(self._file(file), begin, max(1 << _NEAR, start + length - begin))
        for known in list(self._hinted)[:-_HINTS_KEPT]:
            del self._hinted[known]

    def _file(self, number: int) -> IndexedFile:
        found = self._known.get(number)
        if found is None:
            if len(self._known) >= _FILES_REMEMBERED:
                self._known.clear()
            found = self._known[number] = self.index.file(number)
        return found

    def _reader(self, name: str) -> RecordReader:
        found = self._readers.get(name)
        if found is None:
            found = self._readers[name] = module_of(name).reader(self._files, self._memory)
        return found

    def _made(self, records: Iterable[Any], files: Numbers, numbers: Numbers, starts: Numbers) -> list[Any]:
        """Samples of records."""
        if self._decode:
            known = map(self._file, files.tolist())
            records = map(decoded, records, known, numbers.tolist(), starts.tolist())
        return self._transformed(records)

    def _json(self, lines: Iterable[bytes], files: Numbers, numbers: Numbers, starts: Numbers) -> Iterator[Any]:
        """Samples of lines of JSON. See `decoded`, which asks of each line what it is of."""
        decode = json_lines.decode
        for at, line in enumerate(lines):
            try:
                sample = decode(line)
            except (ValueError, RecursionError) as err:
                raise bad_record(err, self._file(int(files[at])), int(numbers[at]), int(starts[at])) from None
            yield sample

    def _transformed(self, samples: Iterable[Any]) -> list[Any]:
        return list(samples) if self._transform is None else [self._transform(sample) for sample in samples]


def decoded(record: Any, file: IndexedFile, number: int, start: int) -> Any:
    """A record as its format and its file's name say. Raises BadRecord."""
    if not isinstance(record, bytes) or file.format == "whole":
        return record
    try:
        return json_lines.decode(record) if is_json(file.path) else record.decode()
    except (ValueError, RecursionError) as err:
        raise bad_record(err, file, number, start) from None


def bad_record(err: Exception, file: IndexedFile, number: int, start: int) -> BadRecord:
    """What is said of a record that cannot be decoded."""
    return BadRecord(f"{file.path}, at {start} (sample {number}): {type(err).__name__}: {err}")
