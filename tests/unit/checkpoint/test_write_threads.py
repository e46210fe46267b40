"""Threads that write one file: what happens where there are fewer of them than wanted."""

from __future__ import annotations

import _thread
import threading
from typing import Any, Callable, List, Tuple

import pytest

from hyperpod_kit.checkpoint.agent.persist.persist import _run_in_threads

RANGES = [(at, at + 1) for at in range(100)]
START = _thread.start_new_thread


def refused(work: Callable[..., Any], words: Tuple[Any, ...]) -> int:
    raise RuntimeError("can't start new thread")


def dead_before_it_begins(work: Callable[..., Any], words: Tuple[Any, ...]) -> int:
    return START(lambda: None, ())


def late(work: Callable[..., Any], words: Tuple[Any, ...]) -> int:
    def later() -> None:
        threading.Event().wait(0.05)
        work(*words)

    return START(later, ())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", [START, refused, dead_before_it_begins, late])
def test_every_range_is_done_once(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", start)
    done: List[Tuple[int, int]] = []
    _run_in_threads(iter(RANGES), lambda begin, end: done.append((begin, end)), 3)
    assert sorted(done) == RANGES


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", [START, refused, dead_before_it_begins, late])
def test_what_fails_is_raised_once_nobody_works_any_more(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", start)
    working: List[int] = []

    def work(begin: int, end: int) -> None:
        working.append(begin)
        try:
            if begin == 50:
                raise OSError("no room")
        finally:
            working.remove(begin)

    with pytest.raises(OSError, match="no room"):
        _run_in_threads(iter(RANGES), work, 3)
    assert not working
