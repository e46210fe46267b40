"""How many files and connections this process may have open at once, and what to do when there are no more.

A batch script inherits the soft limit of whoever submitted it, on most systems 1,024, while a fleet asks for a
descriptor a node or a rank. Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import List, Sequence

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that say that this process or this machine has no more, and nothing about anybody else."""


def soft_limit() -> int:
    """Return the soft limit of open files of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def hard_limit() -> int:
    """Return the hard limit of open files of this process; resource.RLIM_INFINITY is -1."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_soft_limit_to_hard() -> None:
    """Raise the soft limit of open files of this process to the hard limit, where the system allows it."""
    most = hard_limit()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def command_with_soft_limit(limit: int, argv: Sequence[str]) -> List[str]:
    """Return a command line that runs `argv` with that soft limit: a user's program gets the limit that the user
    has set."""
    return [*argv] if limit == soft_limit() else ["/bin/sh", "-c", 'ulimit -Sn "$0" && exec "$@"', str(limit), *argv]
