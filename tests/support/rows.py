"""Rows of a parametrised test that only `make sweep` runs: others of its rows go the same way through the code."""

from __future__ import annotations

from typing import Any, List

import pytest


def slow(*rows: Any) -> List[Any]:
    """Each row (a tuple of values, or one value) as a slow one."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow) for row in rows]
