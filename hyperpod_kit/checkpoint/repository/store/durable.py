"""Files that are whole and on disk, or not there.

Nothing is replaced here, unlike in `system.atomic_file`: a file of a checkpoint is written once.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint

_NO_TMPFILE = (
    errno.EOPNOTSUPP,
    errno.EISDIR,
    errno.EINVAL,
    errno.ENOENT,
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
    errno.EXDEV,
)


def sync_directory(path: str) -> None:
    """fsync a directory by path, where the file system has such a thing; object stores do not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_folder(fd)
    finally:
        os.close(fd)


def sync_folder(fd: int) -> None:
    """fsync a directory that is open, where the file system has such a thing."""
    try:
        os.fsync(fd)
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
            raise


def open_new(folder: int, name: str) -> int:
    """Create a file in the directory `folder` and return a descriptor to write it. Raise FileExistsError,
    OSError."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)


def write_all(fd: int, data: Any) -> None:
    """Write all of `data` at the file's position. Raises OSError."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def _write_halves_with_failpoint_between(fd: int, data: bytes) -> None:
    """Write all of `data`; between the halves a test may kill this process."""
    write_all(fd, data[: len(data) // 2])
    failpoint("store.in_create")
    write_all(fd, data[len(data) // 2 :])


def write_once(path: str, data: bytes) -> None:
    """Create the file `path` with `data`, as `create`. Raise FileExistsError, OSError."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        create(folder, os.path.basename(path), data)
    finally:
        os.close(folder)


def create(folder: int, name: str, data: bytes) -> None:
    """Create `name` with `data` in the directory `folder`, and sync both. Raises FileExistsError, OSError.

    Where the file system can, the file gets its name only after its bytes are on disk (O_TMPFILE and linkat), so it
    is never seen torn. Elsewhere it is created with O_EXCL; a torn file then fails its own digest.
    """
    if not create_unnamed_then_link(folder, name, data):
        fd = open_new(folder, name)
        try:
            _write_halves_with_failpoint_between(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    sync_folder(folder)


def create_unnamed_then_link(folder: int, name: str, data: bytes) -> bool:
    """Write an unnamed file, sync it and link it to `name` in `folder`; return False where the file system
    cannot. Raise FileExistsError, OSError."""
    try:
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except OSError as err:
        if err.errno in _NO_TMPFILE:
            return False
        raise
    try:
        _write_halves_with_failpoint_between(fd, data)
        os.fsync(fd)
        try:
            # With a descriptor Python calls linkat(AT_SYMLINK_FOLLOW), which /proc/self/fd needs.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as err:
            if err.errno in _NO_TMPFILE:
                return False
            raise
        return True
    finally:
        os.close(fd)
