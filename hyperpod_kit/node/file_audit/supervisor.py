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
from hyperpod_kit.node.file_audit.collect import AuditLog, collect_events
from hyperpod_kit.system.process import make_parent_death_hook
from hyperpod_kit.system.readable import wait_until_readable

LIMIT = 2.0
"""Seconds without a sign of life; the collector gives two a second."""
SHORTEST, LONGEST = 0.1, 10.0
"""Seconds before a new one is started, longer and longer while none lives."""


def supervise_audit(path: str, log: str) -> int:
    """Audit the file system of `path` until SIGTERM or SIGINT, starting the collector again whenever it ends.
    Raises NodeError, Absent where it cannot be begun."""
    _require_auditable(path, log)
    ending: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: ending.append(caught))
    reason, pause = "", SHORTEST
    while not ending:
        started_at = time.monotonic()
        status = _run_collector(path, log, reason, ending)
        if not ending:
            reason = f"the collector was {status}; what happened until it was started again was not seen"
            # A disk that is full stays so for a while.
            if time.monotonic() - started_at > LONGEST:
                pause = SHORTEST
            else:
                pause = min(pause * 2, LONGEST)
            until = time.monotonic() + pause
            while not ending and time.monotonic() < until:
                time.sleep(SHORTEST)
    return 0


def _require_auditable(path: str, log: str) -> None:
    if os.geteuid() != 0:
        raise NodeError("only root may watch a file system", hint="sudo hyperpod-kit node audit …")
    if not os.path.ismount(path) or os.stat(path).st_dev == os.stat("/").st_dev:
        raise Absent(
            f"{path} is no mount of its own: what is watched is a whole file system, and never that of /",
            hint="findmnt lists the mounts",
        )
    directory = os.path.dirname(os.path.abspath(log))
    if os.stat(directory).st_dev == os.stat(path).st_dev:
        raise NodeError(f"{log} is on {path} itself: its writing would wait for itself", hint="--log on another disk")


def _run_collector(path: str, log: str, reason: str, received_signals: List[int]) -> str:
    """Run one collector until its end, and return what became of it, in words."""
    reader, writer = os.pipe()
    arm = make_parent_death_hook(os.getpid())
    child = os.fork()
    if child == 0:
        os.close(reader)
        arm()
        _collect_as_child_and_exit(path, log, reason, writer)
    os.close(writer)
    try:
        while True:
            ready = wait_until_readable([reader], LIMIT)
            if received_signals:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                return "ended"
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"silent for {LIMIT:.0f} s and killed"
            if not os.read(reader, 4096):
                _, status = os.waitpid(child, 0)
                return f"gone ({status})"
    except InterruptedError:
        return "interrupted"
    finally:
        os.close(reader)


def _collect_as_child_and_exit(path: str, log: str, reason: str, heartbeat_descriptor: int) -> None:
    stopped: List[int] = []
    signal.signal(signal.SIGTERM, lambda caught, frame: stopped.append(caught))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 1
    try:
        audit_log = AuditLog(log)
        if reason:
            audit_log.append_gap(reason)
        collect_events(path, audit_log, lambda: _send_heartbeat(heartbeat_descriptor), lambda: bool(stopped))
        code = 0
    except OSError as err:
        print(f"audit of {path}: {err}", file=sys.stderr, flush=True)
    os._exit(code)


def _send_heartbeat(descriptor: int) -> Any:
    os.write(descriptor, b".")
