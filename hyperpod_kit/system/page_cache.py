"""What the kernel keeps of files, and how to have it forget that."""

from __future__ import annotations

import os
from typing import Iterable


def drop_cached_pages(paths: Iterable[str]) -> None:
    """Drop the clean pages of these files from the kernel's page cache. Raises OSError."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # it may be a fifo by now
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
