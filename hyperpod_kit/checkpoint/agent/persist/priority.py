"""An agent does not take from the training what it can do without."""

from __future__ import annotations

import contextlib
import ctypes
import os

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IO_LOWEST = (2 << 13) | 7
_NICE = 5


def lower_cpu_and_io_priority(*, whole_process: bool = True) -> None:
    """Leave processor and disk to training: a nice value and the lowest best-effort I/O priority, for all threads that
    this one starts from now on. Not `whole_process`: for this thread, in a process that does other things.

    Where the kernel groups tasks by session (sched_autogroup_enabled, the default of many distributions, outside a
    batch system's control groups) a process of its own session gets an equal share whatever its nice value is: there
    the group has one of its own (sched(7)).

    Python has no ioprio_set(2); where the call is not known (another architecture, a sandbox), nothing happens.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    if whole_process:
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(_NICE))
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        # IOPRIO_WHO_PROCESS is 1, and 0 means the calling thread.
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IO_LOWEST)
