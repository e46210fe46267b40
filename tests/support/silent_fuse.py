"""A FUSE mount that hangs for as long as its descriptor is open and is dead afterwards. Loaded by conftest.py."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Iterator

LIBC = ctypes.CDLL(None, use_errno=True)
FORCE, DETACH = 1, 2


@contextlib.contextmanager
def silent_mount(path: Path) -> Iterator[int]:
    """A FUSE mount at `path` whose daemon, this process, never answers. Yields its descriptor: closing it is death."""
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other"
    if LIBC.mount(b"silent", os.fsencode(path), b"fuse.silent", 0, options.encode()) != 0:
        number = ctypes.get_errno()
        os.close(handle)
        raise OSError(number, os.strerror(number), str(path))
    try:
        yield handle
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
        # Forced, so that a wait in the mount ends even if whoever was forked meanwhile has the descriptor.
        LIBC.umount2(os.fsencode(path), FORCE | DETACH)
