"""Read what HyperPod's plugin prints into the job's own log while it checks nodes, replaces them and retries a step."""

from __future__ import annotations

import os
import re
import stat
from typing import List, Optional, Tuple

from hyperpod_kit.untrusted.text import clean_one_line

AUTO_RESUME_TAG = b"[Auto Resume]"
NODE_CHECK, RETRIED = "Initiating communication with cluster agent", "Retrying step"
"""Parts of the line with which HyperPod begins to check the nodes, and of the one after which it starts the step again.
Other words of these lines are misspelt in some releases."""

PIECE = 1 << 20
"""Bytes that one look reads at most: a job may print much, and the rest is read at the next."""

LONGEST, MOST = 400, 200
"""Characters of a line that are kept, and lines of an attempt."""

_EACH_TASK = re.compile(r"TaskID: \d+ (process_task_init|Successfully terminated)")


class RetryLog:
    """HyperPod's lines in the log from now on. `readable`: whether the log is a file that can be
    read: a pipe cannot."""

    def __init__(self, fds: Tuple[int, ...] = (1, 2)) -> None:
        self._files: List[_LogEnd] = []
        self._kept = 0
        for fd in fds:
            tail = _LogEnd.of(fd)
            if tail is not None and all(tail.key != other.key for other in self._files):
                self._files.append(tail)
        self.readable = bool(self._files)

    def news(self) -> List[str]:
        """Return HyperPod's lines since the last call, without those that each task prints. Never raises."""
        lines: List[str] = []
        for tail in self._files:
            for raw in tail.read_new_marked_lines():
                line = clean_one_line(raw[raw.index(AUTO_RESUME_TAG) :].decode("utf-8", "replace"), LONGEST)
                if _EACH_TASK.search(line) is None and self._kept < MOST:
                    self._kept += 1
                    lines.append(line)
        return lines

    def close(self) -> None:
        """Close the files of the log."""
        for tail in self._files:
            os.close(tail.fd)
        self._files = []


class _LogEnd:
    """A regular file from its end on, opened once more: the writer's own position is not touched."""

    def __init__(self, fd: int, key: Tuple[int, int], size: int) -> None:
        self.fd = fd
        self.key = key
        self._at = size
        self._rest = b""

    @classmethod
    def of(cls, number: int) -> Optional[_LogEnd]:
        """Return the end of a descriptor's file; None for no regular file and for one that cannot be opened."""
        try:
            info = os.fstat(number)
            if not stat.S_ISREG(info.st_mode):
                return None
            fd = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return None
        return cls(fd, (info.st_dev, info.st_ino), info.st_size)

    def read_new_marked_lines(self) -> List[bytes]:
        """Return the complete new lines with HyperPod's tag; none where the file cannot be read."""
        try:
            data = os.pread(self.fd, PIECE, self._at)
        except OSError:
            return []
        self._at += len(data)
        *complete_lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-PIECE:]
        return [line for line in complete_lines if AUTO_RESUME_TAG in line]
