"""Deadlines that tests set in other ways than by `wait.until` are scaled by the machine's speed, too.

`timeout=` of subprocess, where a test sets it and not the code that it tests: a machine that is slow when it has passed
gets as much more time. Marks and the option of pytest-timeout, which ends what hangs: by the load when a test begins.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest

from tests.support.wait import MOST, slowness

TESTS = str(Path(__file__).resolve().parents[1]) + os.sep
_OTHERS = (subprocess.__file__, __file__)
_WAIT = subprocess.Popen.wait
_COMMUNICATE = subprocess.Popen.communicate
_scaling = threading.local()


def _is_of_a_test() -> bool:
    """Whether a test, or what supports it, has called subprocess."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _OTHERS and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(TESTS)


def _more(timeout: Optional[float]) -> float:
    """Seconds that a deadline of a test is prolonged by after it has passed; a wait within another one has its own."""
    if timeout is None or getattr(_scaling, "inside", False) or not _is_of_a_test():
        return 0.0
    return timeout * (slowness() - 1)


def _wait(self: subprocess.Popen[Any], timeout: Optional[float] = None) -> int:
    try:
        return _WAIT(self, timeout)
    except subprocess.TimeoutExpired:
        more = _more(timeout)
        if more <= 0:
            raise
    return _WAIT(self, more)


def _communicate(self: subprocess.Popen[Any], input: Any = None, timeout: Optional[float] = None) -> Any:
    try:
        return _as_one_wait(self, input, timeout)
    except subprocess.TimeoutExpired:
        more = _more(timeout)
        if more <= 0:
            raise
    # What has come and what was sent is kept by the first call.
    return _as_one_wait(self, None, more)


def _as_one_wait(process: subprocess.Popen[Any], input: Any, timeout: Optional[float]) -> Any:
    """`communicate` waits for the end of the process, with what is left of its own deadline."""
    outer = getattr(_scaling, "inside", False)
    _scaling.inside = True
    try:
        return _COMMUNICATE(process, input, timeout)
    finally:
        _scaling.inside = outer


def pytest_configure(config: pytest.Config) -> None:
    subprocess.Popen.wait = _wait  # type: ignore[method-assign]
    subprocess.Popen.communicate = _communicate  # type: ignore[method-assign]


def pytest_unconfigure(config: pytest.Config) -> None:
    subprocess.Popen.wait = _WAIT  # type: ignore[method-assign]
    subprocess.Popen.communicate = _COMMUNICATE  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Before pytest-timeout sets its timer; the kernel counts the load anyway, so that nothing has to be measured."""
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark is not None and mark.args else item.config.getoption("timeout", None)
    if seconds:
        by_load = min(MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        item.add_marker(pytest.mark.timeout(float(seconds) * by_load), append=False)
    return (yield)
