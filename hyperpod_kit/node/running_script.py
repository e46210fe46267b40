"""A script that the program which started it has left at work, by dying first: it has its time, and then it is ended.

Two runs of one script at once are never right, and one that is killed in the middle of dpkg leaves packages that the
next cannot install over. Who it is lies on the node while it runs: its pid with the time of its start.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Optional

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text
from hyperpod_kit.node.timing import wait_for
from hyperpod_kit.system.process import Process, is_alive
from hyperpod_kit.untrusted import by_descriptor

RECORD_PROCESS = 'echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" >"$1"'
"""What a shell runs to say who it is, before it becomes the script."""


def await_or_kill_earlier_run(node: Node, name: str, timeout: float) -> None:
    """Wait for a run of that script that is still at work, for the rest of its timeout; then kill it, and
    delete its record."""
    earlier = _read_process_record(node.paths.running_script_record(name))
    if earlier is not None and is_alive(earlier):
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - earlier.started / os.sysconf("SC_CLK_TCK")
        remaining = min(timeout, max(0.0, timeout - age))
        wait_for(lambda: None if is_alive(earlier) else True, seconds=remaining, clock=node.clock)
        if is_alive(earlier):
            with suppress(OSError):
                os.killpg(earlier.pid, signal.SIGKILL)
    delete_process_record(node, name)


def delete_process_record(node: Node, name: str) -> None:
    """Delete the record of the script's process, when its run has ended."""
    with suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.running_script_record(name))


def _read_process_record(path: str) -> Optional[Process]:
    try:
        pid, started = (read_text(path) or "").split()
        return Process(int(pid), int(started))
    except ValueError:
        return None
