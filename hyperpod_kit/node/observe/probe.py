"""Touch mounts without being caught by one: in processes that can be abandoned, with a hard deadline.

`timeout 5 stat /mnt` is not that: it waits for a child in uninterruptible sleep, and a child that inherited slurmd's
pipes keeps slurmd waiting for as long as it hangs. What touches a mount is another program (prober.py), started
without fork(2) of this process, so that this also holds in a process with threads.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from hyperpod_kit.node.observe.prober import OPERATIONS, OUTPUT_DESCRIPTOR
from hyperpod_kit.system import process
from hyperpod_kit.system.readable import wait_until_readable

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prober.py")

GRACE = 0.5
"""Seconds beyond the deadline for the start of the prober: a busy node starts it late, which is no mount's fault."""


SHORTAGE = (errno.ENOMEM, errno.ENFILE, errno.EMFILE)
"""What this node itself lacks, and any user may have used up: no mount is to blame."""


@dataclass(frozen=True)
class Probed:
    """What touching a path gave.

    outcome: `answered`; `error` (then `errno`); `no_answer` within the deadline; `not_asked`: the prober itself did
    not get to run in time, or died.
    operation: one of prober.OPERATIONS, the one that failed or did not end. After `answered` that is `list` or `write`,
    with its `errno` (ETIMEDOUT when it did not end).
    latency_ms: of stat and statvfs; size, available: bytes of the file system, `available` for ordinary users; inodes
    the same, 0 where the file system does not count them; pid: of a prober that has not ended.
    """

    outcome: str
    errno: int = 0
    operation: str = ""
    latency_ms: float = 0.0
    read_only: bool = False
    size: int = 0
    available: int = 0
    inodes: int = 0
    available_inodes: int = 0
    pid: Optional[int] = None


@dataclass
class _ProbeOutput:
    """What one prober has said so far: when it began (our clock), its look, its work."""

    pid: Optional[int] = None
    started_at: float = 0.0
    stat_fields: Sequence[int] = ()
    deep_fields: Sequence[int] = ()

    def is_complete(self, mode: str) -> bool:
        """Whether it will say nothing more."""
        return bool(self.stat_fields) and (not mode or bool(self.deep_fields) or self.stat_fields[0] != 0)


def probe(path: str, deadline: float, mode: str = "") -> Probed:
    """Probe one path; see `probe_all`."""
    return probe_all([(path, mode)], deadline)[0]


def probe_all(
    targets: Sequence[Tuple[str, str]], deadline: float, probe_file_name: str = ".hyperpod-kit-probe"
) -> List[Probed]:
    """Probe (path, mode) pairs at the same time, in order; mode: letters of `l` (list) and `w` (write and
    remove).

    Takes at most `deadline` + GRACE seconds, whatever the mounts do. A result later than the deadline
    counts as none. probe_file_name: of the file that `w` makes, unique for this node.
    """
    if not targets:
        return []
    reader, writer = _pipe_above_standard_descriptors()
    outputs = [_ProbeOutput() for _ in targets]
    try:
        try:
            launcher = _spawn_prober(writer, probe_file_name, targets)
        finally:
            os.close(writer)
        try:
            _read_outputs(reader, outputs, [mode for _, mode in targets], deadline)
        finally:
            _reap_or_kill_launcher(launcher)
    finally:
        os.close(reader)
    return [_to_probed_and_kill_unfinished(output, mode, deadline) for output, (_, mode) in zip(outputs, targets)]


def _pipe_above_standard_descriptors() -> Tuple[int, int]:
    """A pipe that is none of the three standard descriptors, which a caller may have closed."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _spawn_prober(writer: int, name: str, targets: Sequence[Tuple[str, str]]) -> int:
    command = [sys.executable or "/usr/bin/python3", "-I", "-S", PROGRAM, name]
    for path, mode in targets:
        command += [mode, path]
    # No environment: nothing of a job or of a user may change how a mount is looked at.
    return os.posix_spawn(command[0], command, {}, file_actions=[(os.POSIX_SPAWN_DUP2, writer, OUTPUT_DESCRIPTOR)])


def _read_outputs(reader: int, outputs: Sequence[_ProbeOutput], modes: Sequence[str], deadline: float) -> None:
    """Note what the probers say, until all have said everything or nobody can be in time any more."""
    end = time.monotonic() + deadline + GRACE
    rest = b""
    while True:
        incomplete = [output for output, mode in zip(outputs, modes) if not output.is_complete(mode)]
        if not incomplete:
            return
        if any(output.pid is None for output in incomplete):
            until = end
        else:
            until = max(output.started_at for output in incomplete) + deadline
        remaining = min(until, end) - time.monotonic()
        if remaining <= 0 or not wait_until_readable([reader], remaining):
            return
        chunk = os.read(reader, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            kind, *numbers = line.split()
            index, *values = (int(number) for number in numbers)
            if kind == b"B":
                outputs[index].pid, outputs[index].started_at = values[0], time.monotonic()
            elif kind == b"L":
                outputs[index].stat_fields = values
            else:
                outputs[index].deep_fields = values


def _to_probed_and_kill_unfinished(output: _ProbeOutput, mode: str, deadline: float) -> Probed:
    if output.pid is None:
        return Probed("not_asked")
    waited = time.monotonic() - output.started_at
    left_behind = None
    waits_for_processor = False
    if not output.is_complete(mode):
        left_behind = output.pid
        waits_for_processor = process.is_runnable(output.pid)
        _kill_unfinished(output.pid)
    if not output.stat_fields:
        # Killed by somebody, begun so late that its time was not up, or on a node whose processors are all taken: that
        # says nothing about the mount.
        outcome = "not_asked"
        if waited >= deadline and not waits_for_processor:
            outcome = "no_answer"
        return Probed(outcome, latency_ms=round(waited * 1000, 1), pid=left_behind)
    number, operation, flags, size, available, inodes, free_inodes, microseconds = output.stat_fields
    latency = round(microseconds / 1000, 1)
    if latency > deadline * 1000:
        return Probed("no_answer", latency_ms=latency, pid=left_behind)
    if number in SHORTAGE:
        return Probed("not_asked", latency_ms=latency, pid=left_behind)
    if number:
        return Probed("error", number, OPERATIONS[operation], latency)
    if left_behind is not None:
        number, operation = errno.ETIMEDOUT, 3 if "w" in mode else 2
    elif output.deep_fields:
        number, operation = output.deep_fields
    return Probed(
        "answered",
        number,
        OPERATIONS[operation] if number else "",
        latency,
        bool(flags & os.ST_RDONLY),
        size,
        available,
        inodes,
        free_inodes,
        left_behind,
    )


def _kill_unfinished(pid: int) -> None:
    """Free a prober that waits for NFS or for a FUSE daemon that has not read its question; one in D state ignores it
    and stays behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _reap_or_kill_launcher(launcher: int) -> None:
    """It only starts others and ends: normally long ago."""
    for pause in (0.0, 0.01, 0.05):
        time.sleep(pause)
        if os.waitpid(launcher, os.WNOHANG)[0]:
            return
    with contextlib.suppress(ProcessLookupError):
        os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
