"""The last step that a rank completed, told without a file system: text in anonymous memory of the rank's wrapper.

The wrapper makes it and names it in HPK_PROGRESS; whoever runs below writes a number there (`echo 120 >
"$HPK_PROGRESS"` in a shell, `Manager.step` by itself). It is read when the rank has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import os
from typing import Mapping, Optional

VARIABLE = "HPK_PROGRESS"


class Progress:
    """The wrapper's side."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("hpk-progress", os.MFD_CLOEXEC)

    @property
    def path(self) -> str:
        """What a process of the same user opens to write; it is there as long as the wrapper lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self) -> Optional[int]:
        """The step; None when nobody has said any."""
        text = os.pread(self._fd, 64, 0).split(b"\n")[0].strip()
        return int(text) if text.isdigit() else None


class Teller:
    """The rank's side: `reached` is one pwrite to memory. Says nothing where there is no wrapper, or not in sight."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._fd: Optional[int] = None
        path = env.get(VARIABLE)
        if path:
            with contextlib.suppress(OSError):  # a container with process ids of its own
                self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def reached(self, step: int) -> None:
        """The rank has completed this step."""
        if self._fd is not None:
            os.pwrite(self._fd, b"%020d\n" % step, 0)
