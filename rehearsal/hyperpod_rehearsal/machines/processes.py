"""Whose a process is, who its children are, and its end: of the very process that is meant."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Iterator, Optional, Sequence

from hyperpod_kit.system.process import Process, is_alive
from hyperpod_kit.system.wait import fixed_pause, poll_until

# exec closes what it has to close before the kernel shows the new words: who has just started a process reads none yet.
# A kernel thread never shows any.
EXEC_PATIENCE = 5.0


def command_line(process: Process) -> list[str]:
    """Return the words of the command line of exactly this process; none when it is gone."""

    def read() -> Optional[bytes]:
        """None when the process is gone, empty in the middle of its exec."""
        try:
            content = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            return None
        if is_alive(process):
            return content
        return None

    content = poll_until(read, lambda read_words: read_words != b"", fixed_pause(0.001), seconds=EXEC_PATIENCE)
    if content:
        return os.fsdecode(content).split("\0")
    return []


def is_running_command(process: Optional[Process], expected_words: Sequence[str]) -> bool:
    """Return whether exactly this process runs as this user with these words in a row on its command line."""
    if process is None or not is_alive(process):
        return False
    try:
        owner = os.stat(f"/proc/{process.pid}").st_uid
    except OSError:
        return False
    if owner != os.geteuid():
        return False
    arguments, expected = command_line(process), list(expected_words)
    return any(arguments[at : at + len(expected)] == expected for at in range(len(arguments)))


def children(pid: int) -> list[int]:
    """Direct children, in order of birth; empty when the process is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def send_signal(process: Optional[Process], sig: int = signal.SIGKILL) -> None:
    """Send a signal to exactly this process, by pidfd where there is one; nothing happens when it is gone."""
    if process is None:
        return
    # First a hold on whatever has the pid, then the look at it, then the signal: no other process gets it in between.
    with contextlib.suppress(ProcessLookupError), _open_pidfd_or_none_if_unsupported(process.pid) as pidfd:
        if not is_alive(process):
            return
        if pidfd is None:
            os.kill(process.pid, sig)
        else:
            signal.pidfd_send_signal(pidfd, sig)


@contextlib.contextmanager
def _open_pidfd_or_none_if_unsupported(pid: int) -> Iterator[Optional[int]]:
    """A descriptor of the process, None on a kernel that has none. Raises ProcessLookupError."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as err:
        if err.errno not in (errno.ENOSYS, errno.EPERM):
            raise ProcessLookupError(pid) from err
        yield None
        return
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def wait_for_exit(process: Optional[Process], seconds: float) -> bool:
    """Wait until the process is gone; False when it still runs after `seconds`."""
    return poll_until(lambda: not is_alive(process), bool, fixed_pause(0.02), seconds=seconds)
