"""Which tests execute which lines: a plugin of pytest that records a context of coverage for each test.

HPK_MUTANTS_MAP=FILE HPK_MUTANTS_PACKAGE=hyperpod_kit/slurm pytest -p tests.mutants.line_map tests/unit/slurm
"""

from __future__ import annotations

import os
from typing import Iterator

import coverage
import pytest

_COVERAGE = coverage.Coverage(
    data_file=os.environ["HPK_MUTANTS_MAP"], include=[f"*/{os.environ['HPK_MUTANTS_PACKAGE']}/*"], config_file=False
)


def pytest_sessionstart(session: pytest.Session) -> None:
    _COVERAGE.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _COVERAGE.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _COVERAGE.switch_context("")


def pytest_sessionfinish(session: pytest.Session) -> None:
    _COVERAGE.stop()
    _COVERAGE.save()
