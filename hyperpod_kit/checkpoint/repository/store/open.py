"""From what a user writes to a store."""

from __future__ import annotations

import os
from typing import Union

from .base import Store
from .posix import PosixStore

Where = Union[str, Store]
"""A root as people write it, or one that is open."""


def open_store(root: str) -> Store:
    """The store of a checkpoint root: a path. Touches nothing. Raises CheckpointError, OSError."""
    return PosixStore(os.path.abspath(root))


def as_store(where: Where) -> Store:
    """`where` itself, or the store that it names. Raises as `open_store`."""
    return open_store(os.fspath(where)) if isinstance(where, (str, os.PathLike)) else where
