"""Two ordinary users, by their numbers: nothing of either is known to this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
from pathlib import Path
from typing import Callable, Iterator

import pytest

ATTACKER, VICTIM = 4001, 4002

ROOT = pytest.mark.needs("root")


def as_user(uid: int, work: Callable[[], object]) -> int:
    """Run `work` in a child that has become that user for good; its exit code, 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def be(uid: int) -> list[str]:
    """The words before a command that make it that user's."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


@contextlib.contextmanager
def busy_as(uid: int, program: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program of that user's that goes on until the end of the block; it has said a line when this yields."""
    argv = [*be(uid), "/usr/bin/python3", "-I", "-S", "-c", program, *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stdout.readline(), "it did not begin"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextlib.contextmanager
def place(mode: int = 0o1777) -> Iterator[Path]:
    """A directory that every user reaches; pytest's own are closed to all but their owner."""
    found = Path(tempfile.mkdtemp(prefix="hpk-hostile-", dir="/tmp"))
    try:
        found.chmod(mode)
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)
