"""The files below a directory, a directory at a time, each in bounded time where its mount may hang."""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.retrying_reader import TRANSIENT_ERRORS
from hyperpod_kit.errors import DataUnavailable
from hyperpod_kit.untrusted import source_owner

log = logging.getLogger("hyperpod_kit.data")

T = TypeVar("T")
_MOUNT_LOST_ERRORS = TRANSIENT_ERRORS - {errno.ENOENT}


class ListedFile(NamedTuple):
    """A regular file, or what a link to one leads to."""

    path: str
    size: int
    mtime_ns: int


class SkippedEntries:
    """Entries that are neither files nor links to files, counted by kind and logged once."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first = ""

    def add(self, kind: str, path: str) -> None:
        """Count one more."""
        self._first = self._first or path
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def log_summary(self, directory: str) -> None:
        """Log the counts, if there are any."""
        if self._counts:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._counts.items()))
            log.warning("left out below %r: %s; the first is %r", directory, kinds, self._first)


def describe_non_file(entry: os.DirEntry[str]) -> str:
    """Name the kind of an entry that is no file."""
    if not entry.is_symlink():
        return "fifos, sockets or devices"
    if entry.is_dir():
        return "links to directories"
    return "broken links, or links that are not to a file"


def list_files(mounts: SourceMounts, base: str, accepts_name: Callable[[str], bool]) -> Iterator[ListedFile]:
    """Yield all files below `base`, in the order of their paths in each directory; paths are below it.

    Names, of files and of directories, that `accepts_name` refuses are passed over, and links to directories are
    not followed, which is logged. Raises DataUnavailable, OSError.
    """
    waiting = [""]
    left_out = SkippedEntries()
    while waiting:
        folder = waiting.pop()
        directory, prefix = base, ""
        if folder:
            directory, prefix = os.path.join(base, folder), f"{folder}/"
        with storage_errors_as_data_unavailable(directory):
            folders, files, other_entries = call_bounded_as_owner(
                mounts, directory, functools.partial(_list_directory, directory, accepts_name)
            )
        for kind, path in other_entries:
            left_out.add(kind, path)
        for name, size, mtime_ns in files:
            yield ListedFile(prefix + name, size, mtime_ns)
        waiting.extend(prefix + name for name in reversed(folders))
    left_out.log_summary(base)


def is_directory(mounts: SourceMounts, path: str) -> bool:
    """Whether there is such a directory.

    A mount that is gone or does not answer is DataUnavailable; os.path.isdir would wait for the one and call the other
    no directory.
    """
    with storage_errors_as_data_unavailable(path):
        try:
            return stat.S_ISDIR(call_bounded_as_owner(mounts, path, lambda: os.stat(path)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False


def call_bounded(mounts: SourceMounts, folder: str, function: Callable[[], T]) -> T:
    """Make a call about a directory in bounded time. Raises CallUnanswered."""
    calls = mounts.bounded_calls_for(os.path.join(folder, ""))
    if calls is None:
        return function()
    return calls.call(function)


def call_bounded_as_owner(mounts: SourceMounts, folder: str, function: Callable[[], T]) -> T:
    """Make a call about a source in bounded time, as its owner where this process is root."""
    return call_bounded(mounts, folder, source_owner.wrap_as_source_owner(function))


@contextmanager
def storage_errors_as_data_unavailable(path: str) -> Iterator[None]:
    """Translate errors of storage that is gone or does not answer to DataUnavailable, with the path."""
    try:
        yield
    except OSError as err:
        if err.errno not in _MOUNT_LOST_ERRORS:
            raise
        raise DataUnavailable(f"{path}: {err.strerror or err}", hint="repeat the command to continue") from None


def _list_directory(
    directory: str, accepts_name: Callable[[str], bool]
) -> tuple[list[str], list[tuple[str, int, int]], list[tuple[str, str]]]:
    """List one directory: (directories, files, what is neither: kind and path)."""
    folders, files, other_entries = [], [], []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not accepts_name(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file():
                status = entry.stat()
                files.append((entry.name, status.st_size, status.st_mtime_ns))
            else:
                other_entries.append((describe_non_file(entry), entry.path))
    return sorted(folders), sorted(files), sorted(other_entries)
