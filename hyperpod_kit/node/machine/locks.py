"""One process at a time works on a mount.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.system.file_lock import lock_exclusively_within, try_lock
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted import by_descriptor


@contextlib.contextmanager
def hold_lock(node: Node, name: str, *, seconds: float) -> Iterator[bool]:
    """Hold the file lock `name` for the block; yields False when another process kept it for `seconds`.

    The kernel releases it when the holder dies, whatever it dies of.
    """
    path = node.paths.lock(name)
    by_descriptor.make_parents(path)
    handle = by_descriptor.open_own_or_root_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        clock = node.clock
        yield lock_exclusively_within(handle, seconds, BackOff(0.1, 0.5), clock=clock.monotonic, sleep=clock.sleep)
    finally:
        os.close(handle)


def is_locked(node: Node, name: str) -> bool:
    """Whether some process holds the lock `name` right now."""
    try:
        handle = by_descriptor.open_own_or_root_file(node.paths.lock(name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle, shared=True)
    finally:
        os.close(handle)
