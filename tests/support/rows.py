"""Rows of a parametrised test that only `make test-all` runs: others of its rows go the same way through the code."""

from __future__ import annotations

from typing import Any, List

import pytest


def full(*rows: Any) -> List[Any]:
    """Each row (a tuple of values, or one value) as one of them."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.full) for row in rows]
