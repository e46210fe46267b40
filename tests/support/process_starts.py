"""A pytest plugin that finds the tests that start processes, and that runs no others.

    PYTEST_ADDOPTS="-p tests.support.process_starts --record-starts=$PWD/build/process-starts.txt" make test
    pytest -p tests.support.process_starts --only-starts=build/process-starts.txt tests/unit

A test is recorded if a process is started from its set-up to its teardown, or if it uses a fixture that has started
one, perhaps for an earlier test. What is forked by a process that a test has started does not count.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
from pathlib import Path
from typing import Any, Callable, Generator, List, Set

import pytest

from tests.support import warm

EVENTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})
"""Of https://docs.python.org/3/library/audit_events.html, those of a start."""


class StartCounter:
    """How many processes this one has started since the counter was made."""

    def __init__(self) -> None:
        self.starts = 0
        sys.addaudithook(self._count_event)
        # These two start processes without an audit event of this process.
        multiprocessing.util.spawnv_passfds = self._counted(multiprocessing.util.spawnv_passfds)
        warm.Forked.__init__ = self._counted(warm.Forked.__init__)  # type: ignore[method-assign]

    def _count_event(self, event: str, arguments: object) -> None:
        if event in EVENTS:
            self.starts += 1

    def _counted(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_start(*args: Any, **keywords: Any) -> Any:
            self.starts += 1
            return start(*args, **keywords)

        return count_and_start


class Recorder:
    """Appends the id of each test that starts a process to `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counter = StartCounter()
        self._starting_fixtures: Set[object] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        before = self._counter.starts
        result = yield
        if self._counter.starts > before:
            self._starting_fixtures.add(fixturedef)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = self._counter.starts
        result = yield
        if self._counter.starts > before or self._uses_starting_fixture(item):
            self._append(item.nodeid)
        return result

    def _uses_starting_fixture(self, item: pytest.Item) -> bool:
        if not isinstance(item, pytest.Function):
            return False
        used = item._fixtureinfo.name2fixturedefs
        return any(not self._starting_fixtures.isdisjoint(definitions) for definitions in used.values())

    def _append(self, test: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{test}\n".encode())  # at once: other parts of the suite append, too
        finally:
            os.close(descriptor)


def read_starts(path: Path) -> List[str]:
    """The ids of the tests that start processes, sorted."""
    return sorted(set(path.read_text().splitlines()))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("starts of processes")
    group.addoption("--record-starts", type=Path, help="append the ids of the tests that start processes to this file")
    group.addoption("--only-starts", type=Path, help="run only the tests of this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record-starts")
    if path is not None:
        config.pluginmanager.register(Recorder(path), "recorder-of-starts")


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    path = config.getoption("--only-starts")
    if path is None:
        return
    chosen = set(read_starts(path))
    others = [item for item in items if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item.nodeid in chosen]
