"""A pytest plugin under which whatever a test starts begins late: forked children, threads and programs.

    PYTEST_ADDOPTS="-p tests.support.late_starts" make test

A test that passes only because what it started was faster than its next line fails under it, on an idle machine too.
A forked child sleeps before any other handler of its fork runs, a thread before its first line. A program is stopped as
soon as it runs and goes on a little later; the process that continues it is a child of nobody, so that tests that count
children and threads count what they would without it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from time import sleep  # tests put their own in its place in the module
from typing import Any, Callable

SHARE = 0.5
"""Of forks and programs that begin late."""
SHARE_OF_THREADS = 0.25
LONGEST = 0.3
"""Seconds."""

_random = random.Random()
_delay = 0.0


def _draw(share: float) -> float:
    """Seconds to wait, often none."""
    chosen = _random.random() < share
    return _random.uniform(0, LONGEST) if chosen else 0.0


def _continue_others(reader: int) -> None:
    """Continue each process of a line `pid seconds` when its time has come, until nobody can write any more."""
    timers = []
    with os.fdopen(reader) as lines:
        for line in lines:
            pid, seconds = line.split()
            timers.append(threading.Timer(float(seconds), _continue, (int(pid),)))
            timers[-1].start()
    for timer in timers:
        timer.join()


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _start_continuer() -> int:
    """The pipe of a process that continues others; it ends with the last writer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reader)
        os.waitpid(pid, 0)
        return writer
    if os.fork():
        os._exit(0)
    os.setsid()
    os.closerange(0, reader)
    os.closerange(reader + 1, 4096)
    try:
        _continue_others(reader)
    finally:
        os._exit(0)


def _before_fork() -> None:
    global _delay
    _delay = _draw(SHARE)


def _after_fork() -> None:
    sleep(_delay)


class _LateProgram(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        seconds = _draw(SHARE)
        if seconds and self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGSTOP)
                os.write(_continuer, f"{self.pid} {seconds}\n".encode())


def _late_start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def start_late(thread: threading.Thread) -> None:
        run, seconds = thread.run, _draw(SHARE_OF_THREADS)

        def run_late() -> None:
            sleep(seconds)
            run()

        if seconds:
            thread.run = run_late  # type: ignore[method-assign]
        start(thread)

    return start_late


_continuer = _start_continuer()
os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
subprocess.Popen = _LateProgram  # type: ignore[misc]
threading.Thread.start = _late_start(threading.Thread.start)  # type: ignore[assignment, method-assign]
