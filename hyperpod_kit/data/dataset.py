"""The samples of an index by their numbers: a map-style data set with a length, for torch's DataLoader or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.formats.lines import LineReader
from hyperpod_kit.data.formats.table import RecordReader, module_of
from hyperpod_kit.data.index.layout import IndexedFile, SampleIndex
from hyperpod_kit.data.reading.bounded import ANSWER
from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.data.reading.patient import PATIENCE, PatientFiles
from hyperpod_kit.errors import BadRecord

MEMORY = 256 << 20
_FILES_REMEMBERED = 4096
_LINES = ("lines",)
_BY_RANGE = ("lines", "tar", "whole")


class IndexedDataset:
    """Sample n of an index, decoded, then `transform(sample)`.

    Lines are decoded as JSON, or as text where the file's name does not speak of JSON; a row of Parquet is a dict, a
    sample of a tar a dict from ending to bytes, a whole file its bytes. `decode=False` leaves bytes. `memory`: bytes of
    decompressed or decoded data that each process keeps; of files with short lines, up to 128 MiB of the files.
    `patience`: seconds in which a file is asked for again, by its path, while its mount is repaired; then it is read
    from where `elsewhere` says that a directory lies too (`{"/mnt/corpus": "s3://bucket/corpus"}`), and DataUnavailable
    is raised when that does not help. `answer`: seconds after which a mount that gives no answer counts as failed.
    `cache`: a directory of a local disk for what comes from `s3://`.
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
        self._reading = (patience, dict(elsewhere or {}), cache, answer)
        self._files = self._new_files()
        self._readers: dict[str, RecordReader] = {}
        self._known: dict[int, IndexedFile] = {}

    decodes = True
    """Its numbers are those of records, each of which is good or bad by itself."""

    def __len__(self) -> int:
        return self.index.samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several samples, in the order asked for. Raises BadRecord, ChangedFile, DataUnavailable."""
        asked = np.asarray(numbers, dtype=np.int64)
        numbers_of_files, starts, lengths = self.index.where(asked)
        files = [self._file(number) for number in numbers_of_files.tolist()]
        if self.index.formats == _LINES:
            lines = self._reader("lines")
            assert isinstance(lines, LineReader)
            return self._made(lines.records(files, starts, lengths), files, asked, starts)
        ranges = list(zip(files, starts.tolist(), lengths.tolist(), strict=True))
        if len(ranges) > 1 and self._files.by_others:
            self._files.prepare(one for one in ranges if one[0].format in _BY_RANGE)
        # One is done with before the next one is read: a transform may make little of much.
        records = (self._reader(file.format).record(file, start, length) for file, start, length in ranges)
        return self._made(records, files, asked, starts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None, "_readers": {}, "_known": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = self._new_files()

    def _new_files(self) -> PatientFiles:
        patience, elsewhere, cache, answer = self._reading
        return PatientFiles(patience, elsewhere, cache, answer=answer)

    @property
    def bytes_read(self) -> int:
        """Bytes that this process has read from the sources."""
        return self._files.bytes_read

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

    def _made(
        self, records: Iterable[Any], files: Sequence[IndexedFile], numbers: Numbers, starts: Numbers
    ) -> list[Any]:
        """Samples of records."""
        if self._decode:
            places = zip(records, files, numbers.tolist(), starts.tolist(), strict=True)
            records = (decoded(*place) for place in places)
        return list(records) if self._transform is None else [self._transform(record) for record in records]


def decoded(record: Any, file: IndexedFile, number: int, start: int) -> Any:
    """A record as its format and its file's name say. Raises BadRecord."""
    if not isinstance(record, bytes) or file.format == "whole":
        return record
    try:
        return json.loads(record) if _is_json(file.path) else record.decode()
    except (ValueError, RecursionError) as err:
        raise BadRecord(f"{file.path}, at {start} (sample {number}): {type(err).__name__}: {err}") from None


def _is_json(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return ".json" in name or ".ndjson" in name
