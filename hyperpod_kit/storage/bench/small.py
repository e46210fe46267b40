"""Many small files: what making, listing, opening and removing one costs."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

from hyperpod_kit.untrusted import walk

SIZE = 4096


class SmallFiles(NamedTuple):
    """Seconds a file: the median and the 95th percentile of making and of opening one; files a second of the rest."""

    files: int
    make: float
    make_95: float
    open: float
    open_95: float
    listed: float
    removed: float


def measure(directory: Path, count: int) -> SmallFiles:
    """`count` files of 4 KiB in an empty directory, one after the other. Raises OSError."""
    folder = walk.open_directory(str(directory))
    try:
        return _measured(folder, directory, count)
    finally:
        os.close(folder)


def _measured(folder: int, directory: Path, count: int) -> SmallFiles:
    data = os.urandom(SIZE)
    names = [f"{number:06d}" for number in range(count)]
    made = [_timed(partial(_make, name, folder, data)) for name in names]
    opened = [_timed(partial(_open, name, folder)) for name in names]
    begin = time.perf_counter()
    with os.scandir(folder) as entries:
        found = sum(entry.stat(follow_symlinks=False).st_size == SIZE for entry in entries)
    listed = time.perf_counter() - begin
    if found != count:
        raise OSError(f"{directory}: {count} files were written, {found} are listed with their size")
    begin = time.perf_counter()
    for name in names:
        os.unlink(name, dir_fd=folder)
    removed = time.perf_counter() - begin
    return SmallFiles(count, *_both(made), *_both(opened), count / listed, count / removed)


def _make(name: str, folder: int, data: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _open(name: str, folder: int) -> None:
    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        os.read(fd, 1)
    finally:
        os.close(fd)


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _both(values: list[float]) -> tuple[float, float]:
    """The median and the 95th percentile."""
    ranked = sorted(values)
    return ranked[len(ranked) // 2], ranked[len(ranked) * 95 // 100]
