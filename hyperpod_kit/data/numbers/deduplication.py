"""The values of an array, each once. numpy's own `unique` imports numpy.ma at its first call, which takes a tenth of a
second of processor: as long as all else that a resume does before its first batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers


class UniqueValues(NamedTuple):
    """Sorted values, where each of them comes first, and how often it comes."""

    values: Numbers
    first: Numbers
    counts: Numbers


def unique_values(numbers: Numbers) -> Numbers:
    """Return the distinct values, sorted."""
    return unique_with_counts(numbers).values


def unique_with_counts(numbers: Numbers) -> UniqueValues:
    """Return the distinct values with their first places and their counts."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    return UniqueValues(ordered[begins], order[begins], np.diff(begins, append=len(numbers)))
