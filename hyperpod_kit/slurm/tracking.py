"""Whom Slurm signals in a step: `scancel --signal`, the warning before the time limit, and TERM before KILL.

With proctrack/linuxproc and pgid every process of the step; with proctrack/cgroup only its tasks, which slurmstepd has
started itself. (KILL ends every process with each.)

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re

_CGROUP_FILE = "/proc/self/cgroup"
_FREEZER = re.compile(r"^\d+:(?:[^:]*,)?freezer(?:,[^:]*)?:.*/slurm[^/]*/uid_\d+/", re.M)
"""proctrack/cgroup with cgroup v1: nothing else of Slurm's uses the freezer."""
_SCOPE = re.compile(r"^0::.*slurmstepd\.scope/", re.M)
"""With v2, where all of Slurm's cgroup plugins use the same groups."""


def only_tasks_are_signalled(cgroup_text: str) -> bool:
    """Return whether a signal that Slurm sends to a step reaches only its tasks. `cgroup_text`: a task's
    /proc/self/cgroup. False also where the task cannot see its group."""
    return bool(_FREEZER.search(cgroup_text) or _SCOPE.search(cgroup_text))


def read_own_cgroup_text() -> str:
    """Return the text of this process's /proc/self/cgroup, "" where there is none."""
    try:
        with open(_CGROUP_FILE, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
