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
    """Costs of small files.

    Seconds a file: the median and the 95th percentile of making and of opening one; files a second of the rest.
    """

    files: int
    make: float
    make_95: float
    open: float
    open_95: float
    listed: float
    removed: float


def measure_small_files(directory: Path, count: int) -> SmallFiles:
    """Measure `count` files of 4 KiB in an empty directory, one after the other. Raises OSError."""
    folder = walk.open_directory(str(directory))
    try:
        return _measure_in_folder(folder, directory, count)
    finally:
        os.close(folder)


def _measure_in_folder(folder: int, directory: Path, count: int) -> SmallFiles:
    data = os.urandom(SIZE)
    names = [f"{number:06d}" for number in range(count)]
    create_seconds = [_time_call(partial(_create_and_sync_file, name, folder, data)) for name in names]
    open_seconds = [_time_call(partial(_open_and_read_one_byte, name, folder)) for name in names]
    started_at = time.perf_counter()
    with os.scandir(folder) as entries:
        found_count = sum(entry.stat(follow_symlinks=False).st_size == SIZE for entry in entries)
    listed = time.perf_counter() - started_at
    if found_count != count:
        raise OSError(f"{directory}: {count} files were written, {found_count} are listed with their size")
    started_at = time.perf_counter()
    for name in names:
        os.unlink(name, dir_fd=folder)
    removed = time.perf_counter() - started_at
    return SmallFiles(
        count, *_median_and_95th(create_seconds), *_median_and_95th(open_seconds), count / listed, count / removed
    )


def _create_and_sync_file(name: str, folder: int, data: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_and_read_one_byte(name: str, folder: int) -> None:
    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        os.read(fd, 1)
    finally:
        os.close(fd)


def _time_call(work: Callable[[], None]) -> float:
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


def _median_and_95th(values: list[float]) -> tuple[float, float]:
    """Compute the median and the 95th percentile."""
    ranked = sorted(values)
    return ranked[len(ranked) // 2], ranked[len(ranked) * 95 // 100]
