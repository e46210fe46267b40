"""A file or a directory that others write into: there when it is complete and synced, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from hyperpod_kit.checkpoint.repository.store.durable import sync_directory


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A name beside `target` at which the block makes it; at the end of the block it is `target`. Raises OSError."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield beside
        for path in [beside, *beside.rglob("*")] if beside.is_dir() else [beside]:
            _sync(path)
        os.rename(beside, target)
    except BaseException:
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            beside.unlink(missing_ok=True)
        raise
    sync_directory(str(target.absolute().parent))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
