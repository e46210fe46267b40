"""Places where a test makes the process die: HPK_FAILPOINT=<name> or <name>@<n> (the n-th time), comma separated.

HPK_FAILPOINT_TRACE=<file>: a death leaves its place there, so that a test knows which of many processes died of it.
"""

from __future__ import annotations

import os
import signal
from typing import Dict

from hyperpod_kit.environment import HPK_FAILPOINT, HPK_FAILPOINT_TRACE

_counts: Dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill this process with SIGKILL when the environment asks for it here."""
    requested = os.environ.get(HPK_FAILPOINT)
    if not requested:
        return
    _counts[name] = _counts.get(name, 0) + 1
    if name in requested.split(",") or f"{name}@{_counts[name]}" in requested.split(","):
        trace = os.environ.get(HPK_FAILPOINT_TRACE)
        if trace:
            from hyperpod_kit.untrusted import by_descriptor  # a process that does not die here goes without

            fd = by_descriptor.open_own_or_root_file(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(fd, f"{name} {os.getpid()}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
