"""The one place that opens what lies below a checkpoint root on a file system.

Whoever can write to a root may have left anything there in a file's place: a link, a fifo, a socket, a device, a
directory. So no open waits, what is read is a regular file of a bounded size, and nothing is made, overwritten or
deleted through a link *below* the root. Links above the root, and the root itself, are whoever named it's business;
a directory below it that is a link is read through, because what is read is proved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Iterator, Optional, Tuple

from hyperpod_kit.checkpoint.repository.store.base import SMALL, NotAnObject
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import by_descriptor, files
from hyperpod_kit.untrusted.files import MAYBE_NO_FILE, describe_if_not_regular_file

_OVERWRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def not_an_object_error(path: str, expected: str = "a regular file") -> Untrusted:
    """Return the error for what lies at `path` in the place of what is expected."""
    return files.unexpected_file_error(path, expected, NotAnObject)


def open_to_read(path: str, *, owner: Optional[int] = None) -> Tuple[int, os.stat_result]:
    """Open a regular file and return its descriptor and status. `owner`: the only user whose file is accepted.

    Raise NotAnObject, FileNotFoundError, OSError.
    """
    return files.open_regular_file_to_read(path, required_owner_uid=owner, error=NotAnObject)


def read(path: str, most: int = SMALL, *, owner: Optional[int] = None) -> bytes:
    """Return the content of a small file. Raise NotAnObject also when it is larger than `most`,
    FileNotFoundError, OSError."""
    return files.read_small_regular_file(path, most, required_owner_uid=owner, error=NotAnObject)


def make_root(root: str) -> None:
    """Make the directory of a root that is missing, with those above it. Links above it are followed, but none
    that leads nowhere: what it led to may be back tomorrow.

    Raise UntrustedPlace, FileExistsError for such a link or a file on the way, OSError.
    """
    existing = root
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), existing)
    missing = os.path.relpath(root, existing)
    by_descriptor.make_directories(os.path.join(os.path.realpath(existing), missing), 0o777, shared=True)


def open_parent_folder(root: str, name: str, *, root_fd: int = -1) -> int:
    """Return a descriptor of the directory in which `name` lies; no link leads there from the root, or from
    `root_fd`, a descriptor of it, where that is given.

    Raise NotAnObject when something else than a directory is on the way, FileNotFoundError, OSError.
    """
    fd, path = os.open(root, _FOLDER) if root_fd < 0 else os.open(".", _FOLDER, dir_fd=root_fd), root
    try:
        for part in name.rstrip("/").split("/")[:-1]:
            path = os.path.join(path, part)
            try:
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            except OSError as err:
                if err.errno in MAYBE_NO_FILE and describe_if_not_regular_file(path):
                    raise not_an_object_error(path, "a directory of this root") from None
                raise
            os.close(fd)
            fd = inner
        return fd
    except BaseException:
        os.close(fd)
        raise


@contextlib.contextmanager
def opened_parent_folder(root: str, name: str, *, root_fd: int = -1) -> Iterator[int]:
    """Yield the descriptor of `open_parent_folder`, and close it at the end."""
    fd = open_parent_folder(root, name, root_fd=root_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_truncated(folder_fd: int, path: str) -> int:
    """Return a descriptor to write the file at `path`, which is created or emptied, in the directory
    `folder_fd`.

    Raise NotAnObject when it is no regular file, or one that has other names too, OSError.
    """
    try:
        fd = os.open(os.path.basename(path), _OVERWRITE, 0o644, dir_fd=folder_fd)
    except OSError as err:
        if err.errno in (*MAYBE_NO_FILE, errno.EISDIR) and describe_if_not_regular_file(path):
            raise not_an_object_error(path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise not_an_object_error(path)
        if status.st_nlink != 1:
            raise NotAnObject(f"{os.path.basename(path)} has {status.st_nlink} names, expected 1")
        os.ftruncate(fd, 0)
        return fd
    except BaseException:
        os.close(fd)
        raise


@contextlib.contextmanager
def describing_errors(verb: str, path: str) -> Iterator[None]:
    """A context that adds to an OSError what could not be done (`written`, `deleted`), and to which path."""
    try:
        yield
    except OSError as err:
        err.filename = path
        err.__dict__["verb"] = verb
        raise
