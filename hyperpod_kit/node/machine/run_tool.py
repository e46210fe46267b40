"""Run a program that may hang in the driver, and may say anything for ever: bounded in time and in size.

A process that the kernel holds ignores SIGKILL: it is left behind and noted, and no second one is started beside it,
also by the next run of ours: `run.py:LocalRunner` keeps no such note.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Optional, Sequence

from hyperpod_kit.node.machine.files import read_json, try_write_volatile_json
from hyperpod_kit.system.process import Process, identify_unless_gone_or_zombie, is_alive
from hyperpod_kit.system.readable import read_to_end
from hyperpod_kit.system.wait import fixed_pause, poll_until

LARGEST = 1 << 20
"""Bytes of an answer: dcgmi's for eight GPUs are some 20 kB."""

SLOWEST_END = 1.0
"""Seconds that a program which was killed may take to end."""

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"}
"""Nothing of a job or of a user may change what a program says."""


@dataclass(frozen=True)
class ToolOutput:
    """code: how it ended; text: what it said on both of its outputs. installed, in_time, complete: each may be what is
    missing, in that order."""

    code: int = 0
    text: str = ""
    installed: bool = True
    in_time: bool = True
    complete: bool = True


def find_program(paths: Sequence[str]) -> str:
    """The first of them that is a program, "" for none."""
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), "")


def run_tool(argv: Sequence[str], seconds: float, stuck_process_path: str) -> ToolOutput:
    """Run `argv` for at most `seconds` and return its output; nothing is started while an earlier process is
    stuck. `stuck_note`: file with the process that did not end when it was killed."""
    import subprocess  # not for the checks of mounts, which load what is beside this

    if is_alive(_read_stuck_process_record(stuck_process_path)):
        return ToolOutput(in_time=False)
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
        return ToolOutput(installed=False)
    assert process.stdout is not None
    end = time.monotonic() + seconds
    output, ended, complete = read_to_end(process.stdout.fileno(), end, LARGEST)
    if ended:
        remaining = max(0.05, end - time.monotonic())
        ended = (
            poll_until(process.poll, lambda code: code is not None, fixed_pause(0.01), seconds=remaining) is not None
        )
    if not ended or not complete:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if poll_until(process.poll, lambda code: code is not None, fixed_pause(0.02), seconds=SLOWEST_END) is None:
            stuck_process = identify_unless_gone_or_zombie(process.pid)
            try_write_volatile_json(stuck_process_path, list(stuck_process) if stuck_process else [])
    process.stdout.close()
    code = process.poll()
    text = output.decode("utf-8", "replace")
    return ToolOutput(-1 if code is None else code, text, in_time=ended or not complete, complete=complete)


def _read_stuck_process_record(stuck_process_path: str) -> Process | None:
    raw = read_json(stuck_process_path)
    if isinstance(raw, list) and len(raw) == 2 and all(isinstance(number, int) for number in raw):
        return Process(raw[0], raw[1])
    return None


def read_kernel_log(path: str, seconds: float = 2.0) -> Optional[str]:
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
