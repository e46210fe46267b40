"""The collector under a watch: a process that stands still must never be waited for by everybody's opens.

Each open waits for the collector's answer. So it runs as a child that gives signs of life; without one for LIMIT
seconds it is killed, whereupon the kernel lets all waiters go, and a new one is started. The gap is in the log.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, List

from hyperpod_kit.errors import Absent, NodeError
from hyperpod_kit.node.file_audit.collect import AuditLog, collect
from hyperpod_kit.system.process import dies_with
from hyperpod_kit.system.readable import readable

LIMIT = 2.0
"""Seconds without a sign of life; the collector gives two a second."""
SHORTEST, LONGEST = 0.1, 10.0
"""Seconds before a new one is started, longer and longer while none lives."""


def run(place: str, log: str) -> int:
    """Until SIGTERM or SIGINT. Raises NodeError, Absent where it cannot be begun."""
    _possible(place, log)
    ending: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: ending.append(caught))
    why, pause = "", SHORTEST
    while not ending:
        began = time.monotonic()
        status = _one(place, log, why, ending)
        if not ending:
            why = f"the collector was {status}; what happened until it was started again was not seen"
            # A disk that is full stays so for a while.
            pause = SHORTEST if time.monotonic() - began > LONGEST else min(pause * 2, LONGEST)
            until = time.monotonic() + pause
            while not ending and time.monotonic() < until:
                time.sleep(SHORTEST)
    return 0


def _possible(place: str, log: str) -> None:
    if os.geteuid() != 0:
        raise NodeError("only root may watch a file system", hint="sudo hyperpod-kit node audit …")
    if not os.path.ismount(place) or os.stat(place).st_dev == os.stat("/").st_dev:
        raise Absent(
            f"{place} is no mount of its own: what is watched is a whole file system, and never that of /",
            hint="findmnt lists the mounts",
        )
    directory = os.path.dirname(os.path.abspath(log))
    if os.stat(directory).st_dev == os.stat(place).st_dev:
        raise NodeError(f"{log} is on {place} itself: its writing would wait for itself", hint="--log on another disk")


def _one(place: str, log: str, why: str, ending: List[int]) -> str:
    """One collector until its end; what became of it, in words."""
    ours, theirs = os.pipe()
    arm = dies_with(os.getpid())
    child = os.fork()
    if child == 0:
        os.close(ours)
        arm()
        _child(place, log, why, theirs)
    os.close(theirs)
    try:
        while True:
            ready = readable([ours], LIMIT)
            if ending:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                return "ended"
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"silent for {LIMIT:.0f} s and killed"
            if not os.read(ours, 4096):
                _, status = os.waitpid(child, 0)
                return f"gone ({status})"
    except InterruptedError:
        return "interrupted"
    finally:
        os.close(ours)


def _child(place: str, log: str, why: str, life: int) -> None:
    stopped: List[int] = []
    signal.signal(signal.SIGTERM, lambda caught, frame: stopped.append(caught))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 1
    try:
        written = AuditLog(log)
        if why:
            written.gap(why)
        collect(place, written, lambda: _alive(life), lambda: bool(stopped))
        code = 0
    except OSError as err:
        print(f"audit of {place}: {err}", file=sys.stderr, flush=True)
    os._exit(code)


def _alive(life: int) -> Any:
    os.write(life, b".")
