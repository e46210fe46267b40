"""A pytest plugin under which system calls of the product begin late, at random: between two looks of one process,
others get on.

    PYTEST_ADDOPTS="-p tests.support.late_calls" make test

The pauses are in the process of the tests, its threads and its forked children, before the calls that Python audits
(open, flock, unlink, rename, kill, connect and others, but not stat), and before no call of the tests themselves.
"""

from __future__ import annotations

import random
import sys
from time import sleep  # tests put their own in its place in the module

EVENTS = frozenset(
    {
        "fcntl.fcntl",
        "fcntl.flock",
        "mmap.__new__",
        "open",
        "os.chmod",
        "os.chown",
        "os.fork",
        "os.kill",
        "os.killpg",
        "os.link",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.symlink",
        "os.truncate",
        "os.utime",
        "socket.bind",
        "socket.connect",
        "subprocess.Popen",
    }
)
"""Of https://docs.python.org/3/library/audit_events.html."""

SHARE = 0.06
"""Of the calls that begin late."""
LONGEST = 0.06
"""Seconds."""
PRODUCT = "/hyperpod_kit/"
CALLERS = 4
"""Callers of a call that are looked at: the standard library may stand between."""

_random = random.Random()


def _draw() -> float:
    """Seconds to wait, mostly none."""
    chosen = _random.random() < SHARE
    return _random.uniform(0, LONGEST) if chosen else 0.0


def _is_called_by_product() -> bool:
    try:
        frame = sys._getframe(2)
    except ValueError:  # the interpreter's own call, as at its end: no Python code has made it
        return False
    for _ in range(CALLERS):
        if PRODUCT in frame.f_code.co_filename:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _wait_before_call(event: str, arguments: object) -> None:
    if event not in EVENTS:
        return
    seconds = _draw()
    if seconds and _is_called_by_product():
        sleep(seconds)


sys.addaudithook(_wait_before_call)
