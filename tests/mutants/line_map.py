"""Which tests execute which lines: a plugin of pytest that records a context of coverage for each test.

HPK_MUTANTS_MAP=FILE HPK_MUTANTS_TRACED=hyperpod_kit/slurm/hooks.py:… pytest -p tests.mutants.line_map tests/unit/slurm

Other files are not traced: the tests then take hardly longer than without a map.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterator, List

import coverage
import pytest

MAP = os.environ["HPK_MUTANTS_MAP"]
TRACED = [f"*/{path}" for path in os.environ["HPK_MUTANTS_TRACED"].split(os.pathsep)]
_COVERAGE = coverage.Coverage(data_file=MAP, include=TRACED, config_file=False)

_failed: List[str] = []
"""Tests that fail without any mutant: what they say of one is nothing."""


def pytest_sessionstart(session: pytest.Session) -> None:
    _COVERAGE.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _COVERAGE.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _COVERAGE.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _COVERAGE.stop()
    _COVERAGE.save()
    Path(f"{MAP}.failed").write_text(json.dumps(_failed))
