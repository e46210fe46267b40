"""Rows of a parametrised test that only `make test-all` runs: others of its rows go the same way through the code."""

from __future__ import annotations

from typing import Any, Iterable, List

import pytest
from _pytest.mark import ParameterSet


def full(*rows: Any) -> List[Any]:
    """Each row (a tuple of values, or one value) as one of them."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.full) for row in rows]


def share(rows: Iterable[Any], number: int) -> List[Any]:
    """So many of the rows, evenly over all of them and always the same, for the gate; each other one is full."""
    every = list(rows)
    of_the_gate = {position * len(every) // number for position in range(number)}
    return [row if position in of_the_gate else _as_full(row) for position, row in enumerate(every)]


def _as_full(row: Any) -> Any:
    if isinstance(row, ParameterSet):
        return pytest.param(*row.values, id=row.id, marks=[*row.marks, pytest.mark.full])
    return full(row)[0]
