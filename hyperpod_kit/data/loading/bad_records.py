"""Records that cannot be decoded, met in training: passed over by rule and counted, or an error.

In the place of a bad one comes the next good one of the data, so every batch is as large as it was, on every rank, and
what comes follows from the data alone: a resume gives the same.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hyperpod_kit.errors import BadRecord

log = logging.getLogger("hyperpod_kit.data")

_MAX_SKIPPED = 1000
"""Records in a row that may be bad."""

_MAX_LOGGED = 20
"""Bad records that are named in the log; the others are only counted."""


class OnBad(enum.Enum):
    """What happens to a record that cannot be decoded."""

    RAISE = "raise"
    SKIP = "skip"


class GoodSample(NamedTuple):
    """A sample, and what was wrong with the record in whose place it is ("" for nothing)."""

    sample: Any
    number: int
    wrong: str


class CheckedBatch(NamedTuple):
    """What the trainer is to have, and (number, what is wrong) of each bad record that was passed over for it."""

    batch: Any
    bad: tuple[tuple[int, str], ...]


class GoodRecords:
    """A map-style data set without its bad records."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> GoodSample:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[GoodSample]:
        """Read several samples, in the order asked for."""
        several = getattr(self._dataset, "__getitems__", None)
        try:
            samples = several(list(numbers)) if several else [self._dataset[number] for number in numbers]
        except BadRecord:
            return [self._read_first_good_from(number) for number in numbers]
        return [GoodSample(sample, number, "") for sample, number in zip(samples, numbers, strict=True)]

    def read_by(self, samples_per_block: int) -> None:
        """Pass the block size of the order on to the data set, where it takes one; see IndexedDataset."""
        if hasattr(self._dataset, "read_by"):
            self._dataset.read_by(samples_per_block)

    def _read_first_good_from(self, number: int) -> GoodSample:
        wrong = ""
        for further in range(min(_MAX_SKIPPED, len(self))):
            try:
                return GoodSample(self._dataset[(number + further) % len(self)], number, wrong)
            except BadRecord as err:
                wrong = wrong or err.message
        raise BadRecord(f"{wrong}; and none of the {min(_MAX_SKIPPED, len(self))} samples after it is good either")


class CheckedCollate:
    """Makes a batch of samples by `collate`, and notes which are in the place of bad ones."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[GoodSample]) -> CheckedBatch:
        bad = tuple((sample.number, sample.wrong) for sample in samples if sample.wrong)
        return CheckedBatch(self._collate([sample.sample for sample in samples]), bad)


class BadCount:
    """The bad records that this rank has met since its start; more than `limit` stop the job."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def add_and_enforce_limit(self, bad_records: Sequence[tuple[int, str]]) -> None:
        """Count and log bad records. Raises BadRecord when there are more than the limit."""
        for number, wrong in bad_records:
            self.count += 1
            if self.count <= _MAX_LOGGED:
                log.warning("%s; skipped (sample %d, bad record %d)", wrong, number, self.count)
            if self.count > self._limit:
                raise BadRecord(f"{wrong}; this is bad record {self.count}, and at most {self._limit} are allowed")
