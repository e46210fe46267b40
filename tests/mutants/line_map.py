"""Which tests execute which lines: a plugin of pytest that records a context of coverage for each test.

HPK_MUTANTS_MAP=FILE HPK_MUTANTS_TRACED=hyperpod_kit/slurm/hooks.py:… pytest -p tests.mutants.line_map tests/unit/slurm

Other files are not traced: the tests then take hardly longer than without a map.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Iterator, List

import coverage
import pytest

MAP = os.environ["HPK_MUTANTS_MAP"]
TRACED = [f"*/{path}" for path in os.environ["HPK_MUTANTS_TRACED"].split(os.pathsep)]
_COVERAGE = coverage.Coverage(data_file=MAP, include=TRACED, config_file=False)

_failed: List[str] = []
"""Tests that fail without any mutant: what they say of one is nothing."""


def _trace_threads_one_by_one() -> None:
    """Begin to trace new threads one after the other.

    CPython 3.11 refuses to begin with two at once (ceval.c, `_PyEval_SetTrace`). A thread for which it refuses that is
    gone without a word: whoever waits for its work, waits for ever.
    """
    coverage_hook = threading.gettrace()
    assert coverage_hook is not None, "coverage traces threads"
    threading.settrace(None)
    start_thread = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    turn = threading.Lock()

    def trace_first_call(frame: FrameType, event: Any, arg: Any) -> Any:
        with turn:
            return coverage_hook(frame, event, arg)

    def start_traced(thread: threading.Thread) -> None:
        with turn:
            sys.settrace(trace_first_call)
        start_thread(thread)

    threading.Thread._bootstrap_inner = start_traced  # type: ignore[attr-defined]


def pytest_sessionstart(session: pytest.Session) -> None:
    _COVERAGE.start()
    _trace_threads_one_by_one()


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
