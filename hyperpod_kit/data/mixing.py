"""How well an order mixes: as a figure, beside that of a uniform shuffle, and whether there is a reason to care.

A shuffled order reads some blocks side by side, so a batch has samples of so many places of the data. Where neighbours
of the data are alike (sorted by topic, by language, by class) its batches are less varied than those of a uniform
shuffle. The figure says by how much, whatever the data; whether neighbours are alike, some hundred samples say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.index.layout import SampleIndex
from hyperpod_kit.data.numbers.bijection import permute
from hyperpod_kit.data.numbers.deduplication import unique_values
from hyperpod_kit.data.order.order import SampleOrder

BATCH = 1024
PARTS = 256
"""Equal parts of the data, one after another: a batch is well mixed if it has samples of as many as chance gives it."""

WELL_MIXED = 0.8
"""Of a uniform shuffle's figure."""

_SAMPLED_BATCHES = 16
_SAMPLED_PAIRS = 100
_MAX_VALUE_LENGTH = 64
"""Characters of a value by which data may be sorted: a longer one is a text."""
_ALIKE, _APART = 0.5, 0.3
_RANGE_FORMATS = {"lines", "tar", "whole"}
"""Formats of which single samples are read for what they cost."""


class Mixing(NamedTuple):
    """Of how many of `all` equal parts of the data a batch has samples, in the mean, and of how many one of a uniform
    shuffle has."""

    batch: int
    all: int
    parts: float
    uniform: float

    @property
    def share_of_uniform(self) -> float:
        """Its share of a uniform shuffle's figure."""
        return self.parts / self.uniform


class SortedBy(NamedTuple):
    """A value that neighbours have in common: of which share of neighbours, and of samples that lie apart."""

    name: str
    neighbours: float
    others: float


def measure_mixing(order: SampleOrder, batch: int = BATCH) -> Mixing:
    """Measure how an order mixes, from batches all over its first epoch."""
    samples = order.samples
    size = min(batch, samples)
    parts = min(PARTS, samples)
    begins = unique_values(np.linspace(0, samples - size, _SAMPLED_BATCHES).astype(np.int64)).tolist()
    counts_of_parts = [
        len(unique_values(order.at(0, np.arange(begin, begin + size)) * parts // samples)) for begin in begins
    ]
    absent = (1 - size / samples) ** (samples / parts)
    return Mixing(size, parts, float(np.mean(counts_of_parts)), parts * (1 - absent))


def detect_fields_data_is_sorted_by(index: SampleIndex, seed: int = 0) -> list[SortedBy]:
    """Find the values that neighbours of the data share and others do not: fields of records, directories of files.

    Reads a few hundred samples. Empty for few samples, or where the format reads more than a sample for a sample.
    Raises DataError, OSError.
    """
    if index.samples < 4 * _SAMPLED_PAIRS or set(index.formats) - _RANGE_FORMATS:
        return []
    dataset = IndexedDataset(index, patience=0.0, answer=5.0)
    places = np.linspace(0, index.samples - 2, _SAMPLED_PAIRS).astype(np.int64)
    apart = places[permute(np.arange(_SAMPLED_PAIRS), _SAMPLED_PAIRS, seed + 1)]
    first, next_to, other = (
        _read_directories_and_comparable_fields(dataset, numbers) for numbers in (places, places + 1, apart)
    )
    names = {name for values in first for name in values}
    candidates = [
        SortedBy(name, _share_of_equal_values(name, first, next_to), _share_of_equal_values(name, first, other))
        for name in sorted(names)
    ]
    return [
        candidate
        for candidate in candidates
        if candidate.neighbours >= _ALIKE and candidate.neighbours - candidate.others >= _APART
    ]


def _read_directories_and_comparable_fields(dataset: IndexedDataset, numbers: Any) -> list[dict[str, Any]]:
    """Read the values by which data may be sorted, of each sample, by name."""
    files, _, _ = dataset.index.where(numbers)
    folders = [dataset.index.file(number).path.rpartition("/")[0] for number in files.tolist()]
    is_whole = set(dataset.index.formats) == {"whole"}  # a sample may be large, and is bytes
    samples = [None] * len(folders)
    if not is_whole:
        samples = dataset.__getitems__(numbers.tolist())
    return [
        {"its directory": folder, **_short_fields_or_tar_directory(sample)}
        for folder, sample in zip(folders, samples, strict=True)
    ]


def _short_fields_or_tar_directory(sample: Any) -> dict[str, Any]:
    if not isinstance(sample, Mapping):
        return {}
    key = sample.get("__key__")
    if isinstance(key, str):  # of a tar
        return {"the directory in its tar": key.rpartition("/")[0]}
    return {f"{name!r}": value for name, value in sample.items() if _is_short_value(value)}


def _is_short_value(value: Any) -> bool:
    return isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= _MAX_VALUE_LENGTH)


def _share_of_equal_values(
    name: str, first_samples: Sequence[Mapping[str, Any]], other_samples: Sequence[Mapping[str, Any]]
) -> float:
    both = [
        (first[name], second[name])
        for first, second in zip(first_samples, other_samples, strict=True)
        if name in first and name in second
    ]
    if len(both) < len(first_samples) // 2:
        return 0.0
    equal: int = sum(first == second for first, second in both)
    return equal / len(both)
