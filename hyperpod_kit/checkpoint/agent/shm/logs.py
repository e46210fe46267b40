"""The last words of agents: what their logs in shared memory end with."""

from __future__ import annotations

import contextlib
import os

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.safe_open import open_own_single_link_file
from hyperpod_kit.untrusted.text import clean_one_line

_TAIL = 8192


def read_last_line_and_remove(path: str) -> str:
    """The last line of a log of ours, which is removed; "" when it is empty, not there, or another's."""
    try:
        fd, status = open_own_single_link_file(path, os.O_RDONLY)
    except (OSError, Untrusted):
        return ""
    try:
        tail = os.pread(fd, _TAIL, max(0, status.st_size - _TAIL))
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        by_descriptor.unlink(path)
    lines = tail.decode("utf-8", "replace").strip().splitlines()
    if lines:
        return clean_one_line(lines[-1])
    return ""
