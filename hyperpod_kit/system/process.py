"""Is that process still the one we mean? A pid alone can be reused, a pid with its start time cannot.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Iterator, NamedTuple, Optional, Set, Tuple

_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    """One process. `started`: clock ticks from boot to its start, field 22 of /proc/PID/stat."""

    pid: int
    started: int


def identify_unless_gone_or_zombie(pid: int, proc: str = "/proc") -> Optional[Process]:
    """The process with that pid, None when there is none or it is a zombie. Raises OSError."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19]))


def is_runnable(pid: int, proc: str = "/proc") -> bool:
    """Return whether a process, or one that it has started, is on a processor or waits for one (state R).

    What waits for a file system is in another state (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html).
    False where /proc does not say.
    """
    return any(state == b"R" for _, state in _states_of_tree(pid, proc))


def _states_of_tree(pid: int, proc: str) -> Iterator[Tuple[int, bytes]]:
    """Yield pid and state of a process and of all that it has started, as far as /proc shows them."""
    pids = [pid]
    for number in pids:
        try:
            with open(f"{proc}/{number}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
            with open(f"{proc}/{number}/task/{number}/children", "rb") as file:
                pids.extend(map(int, file.read().split()))
        except (OSError, IndexError):
            continue
        yield number, state


class IdleTime:
    """How long a process, with all that it has started, has got on no more: none of them was seen to run or to wait
    for a processor, none has ended, none was started.

    One that hangs in a call to a file system is idle. Wake-ups do not count: Lustre's client has some each second.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid = pid
        self._proc = proc
        self._pids: Set[int] = set()
        self._active_at = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds for which it has been idle, exact to the interval between two calls."""
        now = time.monotonic()
        states = dict(_states_of_tree(self._pid, self._proc))
        if set(states) != self._pids or b"R" in states.values():
            self._pids, self._active_at = set(states), now
        return now - self._active_at


def is_alive(process: Optional[Process]) -> bool:
    """Whether this very process still runs."""
    return process is not None and identify_unless_gone_or_zombie(process.pid) == process


def this_process() -> Process:
    """This process."""
    process = identify_unless_gone_or_zombie(os.getpid())
    if process is None:
        raise RuntimeError(f"/proc does not show this process ({os.getpid()}): mount -t proc proc /proc")
    return process


def effective_uid(pid: int) -> Optional[int]:
    """The user that a process acts as, None when there is none."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[2]) for line in file if line.startswith(b"Uid:")), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def are_all_uids_root(pid: int, proc: str = "/proc") -> bool:
    """Whether a process is root's and nobody else's: its real, effective, saved and file system uid are all 0.

    Words of a process (its arguments, name and environment) are whoever started it's: a set-user-ID program has its
    caller's. Nothing that root decides rests on those of a process for which this is not true.
    """
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            uids = next((line.split()[1:] for line in file if line.startswith(b"Uid:")), [])
    except OSError:
        return False
    return len(uids) == 4 and set(uids) == {b"0"}


def make_parent_death_hook(parent: int) -> Callable[[], None]:
    """Return a function that has the calling process killed when the thread of `parent` that started it ends;
    may be a `preexec_fn`."""
    import ctypes  # dear to the programs that only identify

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arm
