"""Run a program that may hang in the driver, and may say anything for ever: bounded in time and in size.

A process that the kernel holds ignores SIGKILL: it is left behind and noted, and no second one is started beside it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from hyperpod_kit.node.files import jot, read_json
from hyperpod_kit.system.process import Process, alive, identify
from hyperpod_kit.system.readable import readable
from hyperpod_kit.system.wait import every, look_until

LARGEST = 1 << 20
"""Bytes of an answer: dcgmi's for eight GPUs are some 20 kB."""

SLOWEST_END = 1.0
"""Seconds that a program which was killed may take to end."""

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"}
"""Nothing of a job or of a user may change what a program says."""


@dataclass(frozen=True)
class ProgramAnswer:
    """code: how it ended; text: what it said on both of its outputs. installed, in_time, whole: each may be what is
    missing, in that order."""

    code: int = 0
    text: str = ""
    installed: bool = True
    in_time: bool = True
    whole: bool = True


def find(places: Sequence[str]) -> str:
    """The first of them that is a program, "" for none."""
    return next((path for path in places if os.access(path, os.X_OK) and os.path.isfile(path)), "")


def ask(argv: Sequence[str], seconds: float, stuck_note: str) -> ProgramAnswer:
    """What `argv` says within `seconds`; `stuck_note`: file that remembers a process which did not end."""
    import subprocess  # not for the checks of mounts, which load what is beside this

    if alive(_stuck(stuck_note)):
        return ProgramAnswer(in_time=False)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError:
        return ProgramAnswer(installed=False)
    assert process.stdout is not None
    end = time.monotonic() + seconds
    text, ended, whole = _read(process.stdout.fileno(), end)
    if ended:
        left = max(0.05, end - time.monotonic())
        ended = look_until(process.poll, lambda code: code is not None, every(0.01), seconds=left) is not None
    if not ended or not whole:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if look_until(process.poll, lambda code: code is not None, every(0.02), seconds=SLOWEST_END) is None:
            held = identify(process.pid)
            jot(stuck_note, list(held) if held else [])
    process.stdout.close()
    code = process.poll()
    return ProgramAnswer(-1 if code is None else code, text, in_time=ended or not whole, whole=whole)


def _read(descriptor: int, end: float) -> Tuple[str, bool, bool]:
    """(text, whether its writer has closed it, whether that was all)."""
    parts = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not readable([descriptor], left):
            return parts.decode("utf-8", "replace"), False, True
        part = os.read(descriptor, 65536)
        if not part:
            return parts.decode("utf-8", "replace"), True, True
        parts += part
        if len(parts) > LARGEST:
            return "", False, False


def _stuck(note: str) -> Process | None:
    raw = read_json(note)
    if isinstance(raw, list) and len(raw) == 2 and all(isinstance(number, int) for number in raw):
        return Process(raw[0], raw[1])
    return None


def kernel_log(path: str, seconds: float = 2.0) -> Optional[str]:
    """The records of /dev/kmsg, bounded; None where it cannot be read."""
    parts: list[bytes] = []
    size, end = 0, time.monotonic() + seconds
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        while size < 16 * LARGEST and time.monotonic() < end:
            try:
                part = os.read(descriptor, 8192)
            except BrokenPipeError:
                continue  # this record was overwritten meanwhile
            if not part:
                break
            parts.append(part)
            size += len(part)
    except OSError:
        pass  # EAGAIN: that was all
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")
