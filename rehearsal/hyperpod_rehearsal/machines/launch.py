"""The step between the daemon and systemd-nspawn: own clock, own control groups.

Run as `python3 -I -S launch.py CGROUP_DIR… -- COMMAND…`; becomes COMMAND. A program of its own because the
daemon has threads, and between fork and exec of a threaded process hardly anything is safe.
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWTIME = 0x80


def exec_in_time_namespace_and_cgroups(argv: list[str]) -> None:
    """Prepare this process and replace it by the command. Raises OSError when the kernel refuses a step."""
    split = argv.index("--")
    groups, command = argv[:split], argv[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    # A machine of its own has booted just now. With the host's uptime slurmctld could not see that a node was
    # replaced, and its jobs would hang for ever.
    with open("/proc/uptime") as handle:
        uptime = handle.read().split()[0]
    seconds, nanoseconds = divmod(-int(uptime.replace(".", "")) * 10**7, 10**9)
    if libc.unshare(CLONE_NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWTIME)")
    with open("/proc/self/timens_offsets", "w") as handle:
        handle.write(f"monotonic {seconds} {nanoseconds}\nboottime {seconds} {nanoseconds}\n")
    for group in groups:
        folder = os.open(group, os.O_PATH | os.O_DIRECTORY)
        with os.fdopen(os.open("cgroup.procs", os.O_WRONLY, dir_fd=folder), "w") as handle:
            handle.write("0")
        os.close(folder)
    os.execvp(command[0], command)


if __name__ == "__main__":
    exec_in_time_namespace_and_cgroups(sys.argv[1:])
