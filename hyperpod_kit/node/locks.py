"""One process at a time works on a mount.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator, Optional

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.timing import wait_for


@contextlib.contextmanager
def held(node: Node, name: str, *, seconds: float) -> Iterator[bool]:
    """Hold the lock `name`; yields False when another process kept it for `seconds`.

    The kernel releases it when the holder dies, whatever it dies of.
    """
    path = node.paths.lock(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:

        def take() -> Optional[bool]:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return None

        yield bool(wait_for(take, seconds=seconds, clock=node.clock, longest=0.5))
    finally:
        os.close(handle)


def is_held(node: Node, name: str) -> bool:
    """Whether some process holds the lock `name` right now."""
    try:
        handle = os.open(node.paths.lock(name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
