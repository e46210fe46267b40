"""Work on a network mount, in a child with a deadline: a mount that hangs costs the child and not us.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Callable, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.system.readable import wait_until_readable
from hyperpod_kit.system.wait import fixed_pause, poll_until


class NoResponse(NodeError):
    """The work was not done in time; its child was killed, and left behind if the kernel holds it."""


def run_in_child(what: str, work: Callable[[], Any], seconds: float) -> Any:
    """Run `work` in a forked child that is killed after `seconds`, and return its result, passed through JSON.
    Raises NodeError when it fails, NoResponse when it takes longer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _close_nonstandard_descriptors_except(keep=writer)
            os.setsid()
            os.write(writer, json.dumps(_call_returning_result_or_error_text(work)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        text = _read_to_end_or_nothing(reader, seconds)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        # Whoever is held by the kernel does not end; init takes it when we have gone.
        poll_until(lambda: os.waitpid(pid, os.WNOHANG)[0], bool, fixed_pause(0.01), seconds=1.0)
    if not text:
        raise NoResponse(f"{what}: no answer within {seconds:g} s")
    good, response = json.loads(text)
    if not good:
        raise NodeError(f"{what}: {response}")
    return response


def _close_nonstandard_descriptors_except(keep: int) -> None:
    """Close all but the standard streams and one: a child that the kernel keeps would keep the caller's locks, too."""
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) > 2 and int(descriptor) != keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(descriptor))


def _call_returning_result_or_error_text(work: Callable[[], Any]) -> Tuple[bool, Any]:
    try:
        return True, work()
    except HyperpodKitError as err:
        return False, err.message
    except OSError as err:
        return False, f"{err.filename or ''}: {err.strerror or err}"
    except Exception as err:
        return False, f"{type(err).__name__}: {err}"


def _read_to_end_or_nothing(reader: int, seconds: float) -> bytes:
    """Everything until the writer has closed; nothing when that takes too long."""
    end = time.monotonic() + seconds
    text = b""
    while True:
        remaining = end - time.monotonic()
        if remaining <= 0 or not wait_until_readable([reader], remaining):
            return b""
        part = os.read(reader, 65536)
        if not part:
            return text
        text += part
