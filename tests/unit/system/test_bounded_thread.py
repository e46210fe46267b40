"""Calls in threads that are left behind: the opening of a pipe that nobody writes to, and a mount that hangs."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.system.bounded_thread import BoundedCalls, CallUnanswered, result_within, start_in_thread
from tests.support.silent_fuse import silent_mount
from tests.support.wait import until


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """Its opening waits in the kernel, until somebody writes."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def test_whoever_waits_goes_on_and_may_wait_again(pipe: str) -> None:
    call = start_in_thread(partial(opened, pipe), "test")
    for _ in range(2):
        with pytest.raises(CallUnanswered, match=r"no answer for 0\.05 s") as caught:
            result_within(call, 0.05)
        assert caught.value.errno == errno.ETIMEDOUT
    writer = os.open(pipe, os.O_RDWR)
    os.close(result_within(call, 60))
    os.close(writer)


def test_what_it_raises_is_raised_here_a_timeout_of_its_own_too() -> None:
    def refuse() -> None:
        raise TimeoutError(errno.ETIMEDOUT, "the server's")

    for error, function in ((TimeoutError, refuse), (ZeroDivisionError, lambda: 1 // 0), (SystemExit, exit)):
        with pytest.raises(error) as caught:
            result_within(start_in_thread(function, "test"), 60)
        assert type(caught.value) is error
        with pytest.raises(error):
            BoundedCalls(60, "test").call(function)


def test_no_more_threads_than_so_many_are_left_behind(pipe: str) -> None:
    calls = BoundedCalls(0.05, "test", most_threads=3)
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    late: List[int] = []
    for _ in range(3):
        with pytest.raises(CallUnanswered):
            calls.call(partial(opened, pipe), on_late_result=late.append)
    never: List[int] = []
    for _ in range(2):
        with pytest.raises(CallUnanswered):
            calls.call(partial(never.append, 1))
    assert len(set(threading.enumerate()) - before) == 3, "no more than so many wait in the kernel"
    writer = os.open(pipe, os.O_RDWR)
    until(lambda: calls._under_way == 0, what="the end of what was left behind")
    calls.seconds = 60.0
    assert calls.call(lambda: 1) == 1 and never == [], "what nobody waits for any more is not begun"
    assert len(late) == 3, "what came late is handed on"
    for handle in (*late, writer):
        os.close(handle)


def test_a_late_error_is_handed_to_nobody(pipe: str) -> None:
    def open_and_fail() -> None:
        os.close(opened(pipe))
        raise OSError(errno.EIO, "late")

    late: List[None] = []
    calls = BoundedCalls(0.05, "test")
    with pytest.raises(CallUnanswered):
        calls.call(open_and_fail, on_late_result=late.append)
    writer = os.open(pipe, os.O_RDWR)
    until(lambda: calls._under_way == 0, what="the end of what was left behind")
    assert late == []
    os.close(writer)


def test_results_are_not_kept(tmp_path: Path) -> None:
    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    calls = BoundedCalls(60, "test")
    calls.call(Result)
    until(lambda: Result.alive == 0, what="the end of the result")


@pytest.mark.needs("fuse")
def test_a_mount_that_hangs_and_then_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "mount"
    calls = BoundedCalls(0.2, "test")
    with silent_mount(path) as handle:
        with pytest.raises(CallUnanswered):
            calls.call(lambda: os.statvfs(path))
        os.close(handle)  # its daemon is dead
        until(lambda: calls._under_way == 0, what="the end of what was left behind")
        calls.seconds = 60.0
        with pytest.raises(OSError) as caught:
            calls.call(lambda: os.statvfs(path))
    assert caught.value.errno == errno.ENOTCONN
