"""Which files: everything below directories, or the lines of a list.

Root looks at each directory with the rights of its owner, in a child with a deadline, follows no link of another user's
and asks nothing of a file system that another user serves.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from hyperpod_kit.errors import Absent, Unreachable, Untrusted
from hyperpod_kit.untrusted import dirfd, files, owner, walk

CHUNK = 1000
MAX_DEPTH = 200
"""Directories one in another."""


@dataclass(frozen=True)
class PreloadFile:
    """A regular file and its size in bytes. `uid`: whose it is, where root asks; `folder`: its directory without
    links, where it is known."""

    path: str
    size: int
    uid: Optional[int] = None
    folder: str = ""


@dataclass(frozen=True)
class PreloadList:
    """`unread`: what could not be looked at, one sentence each: what is in there stays unknown."""

    files: tuple[PreloadFile, ...]
    unread: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Sum the bytes of all files."""
        return sum(file.size for file in self.files)


def list_files(paths: Sequence[str], files_from: Optional[Path] = None) -> PreloadList:
    """List every regular file of the places and of the list, each path once, in a stable order.

    Links are not followed below a place. Raises Absent for a place that is not there.
    """
    by_path: dict[str, PreloadFile] = {}
    unread: list[str] = []
    waiting = [*paths, *_read_name_list(files_from)]
    while waiting:
        current = 0

        def receive(message: list[Any]) -> None:
            nonlocal current
            kind, *values = message
            if kind == _STARTED:
                current = values[0]
            elif kind == _UNREAD:
                unread.append(values[0])
            else:
                by_path.update((row[0], PreloadFile(*row)) for row in values[0])

        uid = 0 if owner.is_machine_root() else None
        try:
            owner.run_as_user_with_reports(waiting[0], uid, partial(_report_files_of_paths, list(waiting)), receive)
            break
        except Unreachable as err:
            unread.append(f"{waiting[current]}: {err}")
            waiting = waiting[current + 1 :]
    return PreloadList(tuple(by_path.values()), tuple(unread))


_MAX_LIST_BYTES = 4 << 30
"""Bytes of a list of names."""
_STARTED, _UNREAD, _FILES = "begun", "unread", "files"


def _report_files_of_paths(paths: Sequence[str], report: Callable[[Any], None]) -> None:
    for number, path in enumerate(paths):
        report([_STARTED, number])
        absolute = os.path.abspath(path)
        try:
            descriptor = _open_path_descriptor(absolute)
        except Untrusted as err:
            report([_UNREAD, str(err)])
            continue
        except OSError as err:
            raise Absent(
                f"{path}: {err.strerror}", hint="is it mounted on this machine? hyperpod-kit validate-mounts"
            ) from err
        try:
            _report_file_or_directory(descriptor, absolute, report)
        finally:
            os.close(descriptor)


def _open_path_descriptor(path: str) -> int:
    """Open a descriptor that names what a user asks for. Raises Untrusted, OSError."""
    if owner.is_machine_root():
        return _open_trusted_path_descriptor(path)
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def open_file(file: PreloadFile) -> int:
    """Open a listed file to read. Since then its directory may have been exchanged for a mount: where root
    asks, each name of its path is held before anything is asked of it. Raises Untrusted, OSError."""
    if file.uid is None:
        # A FIFO may have come into its place, of which an open waits for a writer.
        return os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    descriptor = _open_trusted_path_descriptor(file.path)
    try:
        return dirfd.reopen_path_fd(descriptor, os.O_RDONLY)
    finally:
        os.close(descriptor)


def access_problem(path: str) -> str:
    """Return why a listed file may not be used any more, "" where it may.

    It is checked for files that root preloads, before a program is given their paths.
    """
    try:
        os.close(_open_trusted_path_descriptor(path))
    except (OSError, Untrusted) as err:
        return getattr(err, "strerror", None) or str(err)
    return ""


def _open_trusted_path_descriptor(path: str) -> int:
    """Open a descriptor that names what lies at a path.

    A process that has become a user for root does not enter what that user serves. Raises Untrusted, OSError.
    """
    parent, name = walk.open_parent(path, follow=True, enter_own_mounts=False)
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        walk.require_trusted_mount_else_close(descriptor, parent, name, path, own_mounts=False)
        return descriptor
    finally:
        os.close(parent)


def _report_file_or_directory(descriptor: int, path: str, report: Callable[[Any], None]) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        FilesBelow(report).report_files_recursively(descriptor, path, os.readlink(f"/proc/self/fd/{descriptor}"), 0)
    elif stat.S_ISREG(status.st_mode):
        folder = os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))
        report([_FILES, [(path, status.st_size, _owner_uid_when_root(status), folder)]])


def _owner_uid_when_root(status: os.stat_result) -> Optional[int]:
    return status.st_uid if owner.is_machine_root() else None


class FilesBelow:
    """Reports every regular file below a directory. Links are not followed."""

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report
        self._as_root = owner.is_machine_root()

    def report_files_recursively(self, descriptor: int, path: str, real: str, depth: int) -> None:
        """Report a directory.

        `path`: as it was asked for; `real`: the same without links; `descriptor`: a descriptor of it.
        """
        uid = 0
        if self._as_root:
            uid = os.fstat(descriptor).st_uid
        try:
            if depth > MAX_DEPTH:
                raise OSError(errno.ELOOP, f"directories nested more than {MAX_DEPTH} deep")
            with owner.acting_as_user_if_root(uid):
                handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError as err:
            self._report([_UNREAD, f"{path}: {err.strerror}"])
            return
        try:
            with owner.acting_as_user_if_root(uid):
                below = self._report_files_and_list_subdirectories(handle, path, real)
            for name in below:
                self._report_subdirectory(handle, uid, name, path, real, depth)
        finally:
            os.close(handle)

    def _report_subdirectory(self, handle: int, uid: int, name: str, path: str, real: str, depth: int) -> None:
        try:
            with owner.acting_as_user_if_root(uid):
                descriptor = self._open_entry_as_path_descriptor(handle, name, path)
        except (OSError, Untrusted) as err:
            self._report([_UNREAD, f"{path}/{name}: {getattr(err, 'strerror', None) or err}"])
            return
        try:
            self.report_files_recursively(
                descriptor, f"{path.rstrip('/')}/{name}", f"{real.rstrip('/')}/{name}", depth + 1
            )
        finally:
            os.close(descriptor)

    def _report_files_and_list_subdirectories(self, handle: int, path: str, real: str) -> list[str]:
        """Report the files of a directory and return the names of its directories."""
        below: list[str] = []
        files: list[tuple[str, int, Optional[int], str]] = []
        for name in sorted(os.listdir(handle)):
            try:
                descriptor = self._open_entry_as_path_descriptor(handle, name, path)
            except FileNotFoundError:
                continue
            except (OSError, Untrusted) as err:
                self._report([_UNREAD, f"{path}/{name}: {getattr(err, 'strerror', None) or err}"])
                continue
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if stat.S_ISDIR(status.st_mode):
                below.append(name)
            elif stat.S_ISREG(status.st_mode):
                uid = status.st_uid if self._as_root else None
                files.append((f"{path.rstrip('/')}/{name}", status.st_size, uid, real))
            if len(files) >= CHUNK:
                self._report([_FILES, files])
                files = []
        if files:
            self._report([_FILES, files])
        return below

    def _open_entry_as_path_descriptor(self, handle: int, name: str, path: str) -> int:
        """Open a descriptor that names an entry. Raises Untrusted, OSError."""
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        if self._as_root:
            walk.require_trusted_mount_else_close(descriptor, handle, name, path)
        return descriptor


def _read_name_list(path: Optional[Path]) -> list[str]:
    if path is None:
        return []
    try:
        text = files.read_file_or_pipe(str(path), _MAX_LIST_BYTES).decode("utf-8", "surrogateescape")
    except OSError as err:
        raise Absent(f"cannot read {path}: {err.strerror}") from err
    # With `find -print0` names may have ends of lines in them.
    separator = "\0" if "\0" in text else "\n"
    return [line for line in text.split(separator) if line]
