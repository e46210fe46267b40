"""A call in a child process, with a deadline: a mount that hangs costs the child and not us.

For a process of one thread on a node, which has to be as it was after the call. What the other form is for says
`bounded_thread.py`; which is for whom is a table of docs/design/architecture.md.

- The child is a fork: the function may use whatever is there, and nothing that it changes in memory stays.
- At the deadline it is killed. One that the kernel holds (D state) ignores that and stays until its mount answers or
  is detached: it is waited for no longer, and reaped by a later call, or by init when this process has ended.
- It has no descriptor of this process, so it keeps no lock and nobody who reads our output, and no terminal.
- Those that stay are not counted: a caller asks one question at a time and each costs it the deadline, so whoever asks
  again and again (`node/slurm/lease_keeper.py`) has the mount probed first.
- In a process with threads a lock that another thread has held stays locked in the child, and this is a NoResponse
  like any other. A process that has loaded torch uses the other form.

Standard library only, Python 3.8: this file is part of the bundle. A check of the mounts loads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from typing import Any, Callable, List, NoReturn, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.system.readable import read_to_end
from hyperpod_kit.system.wait import fixed_pause, poll_until

_END_SECONDS = 1.0
"""Seconds that a child which was killed may take to end, where the kernel does not hold it."""

_unreaped: List[int] = []


class NoResponse(NodeError):
    """The call was not done in time; its child was killed, and left behind if the kernel holds it."""


def call_in_child(what: str, function: Callable[[], Any], seconds: float) -> Any:
    """Call `function` in a forked child that is killed after `seconds`, and return its result, passed through JSON.

    Raises NodeError, which begins with `what`, when it fails, NoResponse when it takes longer.
    """
    _unreaped[:] = [pid for pid in _unreaped if not _reap(pid)]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _call_and_exit(function, writer)
    os.close(writer)
    try:
        text, has_closed, _ = read_to_end(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        if not poll_until(lambda: _reap(pid), bool, fixed_pause(0.01), seconds=_END_SECONDS):
            _unreaped.append(pid)
    if not has_closed or not text:
        raise NoResponse(f"{what}: no answer within {seconds:g} s")
    good, response = json.loads(text)
    if not good:
        raise NodeError(f"{what}: {response}")
    return response


def _reap(pid: int) -> bool:
    """Whether that child has ended; then it is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # of the process that has forked this one
        return True


def _call_and_exit(function: Callable[[], Any], writer: int) -> NoReturn:
    try:
        sink = _keep_one_descriptor(writer)
        os.setsid()
        with os.fdopen(sink, "wb") as stream:
            stream.write(json.dumps(_call_returning_result_or_error_text(function)).encode())
    finally:
        os._exit(0)


def _keep_one_descriptor(writer: int) -> int:
    """Close all descriptors but one, have the standard ones lead nowhere, and return the number of the one."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != writer:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(descriptor)
    sink = fcntl.fcntl(writer, fcntl.F_DUPFD, 3)  # it may be a standard one, where the caller has closed that
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    return sink


def _call_returning_result_or_error_text(function: Callable[[], Any]) -> Tuple[bool, Any]:
    try:
        return True, function()
    except HyperpodKitError as err:
        return False, err.message
    except OSError as err:
        return False, f"{err.filename or ''}: {err.strerror or err}"
    except Exception as err:
        return False, f"{type(err).__name__}: {err}"
