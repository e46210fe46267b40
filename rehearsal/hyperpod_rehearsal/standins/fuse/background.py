"""Mount in the background: the command returns when the mount can be used, the daemon goes on."""

from __future__ import annotations

import os
import sys
from typing import Callable, Optional

from hyperpod_rehearsal.standins.fuse.session import FuseSession


class StartFailed(Exception):
    """The mount could not be made: the text for standard error and the exit code of the command."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def fork_and_serve_mount(
    start: Callable[[], FuseSession], target: str, on_unmounted: Optional[Callable[[], None]] = None
) -> int:
    """Fork; the child mounts with `start()` and serves until unmounted, the parent returns its exit code.

    `start` returns a session that is started, or raises StartFailed, whose message the parent prints;
    `on_unmounted` is called once it is unmounted.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            code, _, message = pipe.read().partition(b"\n")
        if message:
            sys.stderr.write(message.decode("utf-8", "replace") + "\n")
        return int(code) if code else 1  # nothing written: the child died
    os.close(reader)
    os.setsid()
    os.chdir("/")
    try:
        session = start()
        os.stat(target)  # waits for the kernel's INIT: usable from here on
    except StartFailed as err:
        os.write(writer, f"{err.code}\n{err.message}".encode())
        os._exit(err.code)
    except OSError as err:
        os.write(writer, f"1\n{err}".encode())
        os._exit(1)
    os.write(writer, b"0\n")
    os.close(writer)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    session.wait_until_unmounted()
    if on_unmounted is not None:
        on_unmounted()
    os._exit(0)
