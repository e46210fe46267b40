"""What the kernel keeps of files, and how to have it forget that."""

from __future__ import annotations

import os
from typing import Iterable


def forget(paths: Iterable[str]) -> None:
    """The next read of these files is the disk's, but for what is not written yet. Raises OSError."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # it may be a fifo by now
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
