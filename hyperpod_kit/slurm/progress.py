"""The last step that a rank completed, told without a file system: text in anonymous memory of the rank's wrapper.

The wrapper makes it and names it in HPK_PROGRESS; whoever runs below writes a number there (`echo 120 >
"$HPK_PROGRESS"` in a shell, `Manager.step` by itself). It is read when the rank has ended, however it ended. In a
container with process ids of its own there is no such file, and nothing is known (`… || true` in a shell with set -e).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from typing import Mapping, Optional

from hyperpod_kit.environment import HPK_PROGRESS

NAME = "hpk-progress"

_BEGINS, _FAILED = 64, 128
"""Where the first step stands, and how many saves came to nothing: behind what a person may write."""


class RankProgress:
    """The wrapper's side."""

    def __init__(self) -> None:
        self._fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        # Where process ids are another container's, the path may name a process that is none of ours: let it be a
        # descriptor that nobody has open there.
        with contextlib.suppress(OSError):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            far = fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, min(900, limit * 3 // 4))
            os.close(self._fd)
            self._fd = far

    @property
    def path(self) -> str:
        """What a process of the same user opens to write; it is there as long as the wrapper lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self) -> Optional[int]:
        """The step; None when nobody has said any."""
        return self._number(0)

    def begins(self) -> Optional[int]:
        """The first step that the rank is to do; None when nobody has said it."""
        return self._number(_BEGINS)

    def failed(self) -> int:
        """How many saves of the rank came to nothing, as it says."""
        return self._number(_FAILED) or 0

    def _number(self, place: int) -> Optional[int]:
        text = os.pread(self._fd, 64, place).split(b"\n")[0].strip()
        return int(text) if text.isdigit() else None


class Teller:
    """The rank's side. Keeps no descriptor; says nothing where there is no wrapper, or it is not in sight."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._path = env.get(HPK_PROGRESS)
        self._failed = 0

    def reached(self, step: int) -> None:
        """The rank has completed this step. Four system calls on memory, no file system."""
        self._say(step, 0)

    def begins(self, step: int) -> None:
        """The rank has restored its state, and this is the first step that it does."""
        self._say(step, _BEGINS)

    def failed(self) -> None:
        """A save came to nothing: the wrapper asks the checkpoint root now, and not at its next look."""
        self._failed += 1
        self._say(self._failed, _FAILED)

    def _say(self, step: int, place: int) -> None:
        if not self._path:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # a container with process ids of its own
            self._path = None
            return
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{NAME}"):
            self._path = None
            os.close(fd)
            return
        try:
            os.pwrite(fd, b"%020d\n" % step, place)
        finally:
            os.close(fd)
