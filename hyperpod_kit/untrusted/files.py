"""The one place that opens a file in a directory which others may write to, and that makes a directory of ours there.

Others may have left anything in a file's place: a link, a fifo, a socket, a device, a directory, a file of theirs. So
no open waits and none follows a link; type, owner and size are those of what was opened, not of a name.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from typing import Callable, List, Optional, Tuple, Type

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import walk

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

SMALL = 1 << 20
"""Bytes that a small file may have where nothing else is said."""

PIPE_SECONDS = 60.0
"""How long a pipe may take that is named on a command line."""

GIVEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20

MAYBE_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR)
"""What an open says of a link, a socket, a device without a driver, a path through a file; a look tells."""

_KINDS = (
    (stat.S_ISREG, ""),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def describe_if_not_regular_file(path: str) -> str:
    """What lies there, in words; "" for a regular file and for nothing."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as err:
        if err.errno in MAYBE_NO_FILE:
            return "below something that is not a directory"
        return ""
    if stat.S_ISLNK(mode):
        with contextlib.suppress(OSError):
            return f"a symbolic link to {os.readlink(path)}"
    return next((description for test, description in _KINDS if test(mode)), "not a regular file")


def unexpected_file_error(path: str, expected: str = "a regular file", error: Type[Untrusted] = Untrusted) -> Untrusted:
    """The error for what lies at `path` in the place of what is wanted."""
    return error(
        f"{os.path.basename(path)} is {describe_if_not_regular_file(path) or 'something else'}, expected {expected}"
    )


def too_large_error(name: str, size: int, most: int, error: Type[Untrusted] = Untrusted) -> Untrusted:
    """The error for a small file that is larger than it may be."""
    return error(f"{os.path.basename(name)} has {size} bytes, expected at most {most}")


def open_regular_file_to_read(
    path: str, *, required_owner_uid: Optional[int] = None, error: Type[Untrusted] = Untrusted
) -> Tuple[int, os.stat_result]:
    """A descriptor of a regular file, and its facts. `owner`: the only uid whose file will do.

    Raises `error`, FileNotFoundError, OSError.
    """
    try:
        fd = os.open(path, READ)
    except OSError as err:
        if err.errno in MAYBE_NO_FILE and describe_if_not_regular_file(path):
            raise unexpected_file_error(path, error=error) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise unexpected_file_error(path, error=error)
        if required_owner_uid is not None and status.st_uid != required_owner_uid:
            raise error(f"{path} belongs to uid {status.st_uid}, expected uid {required_owner_uid}")
        return fd, status
    except BaseException:
        os.close(fd)
        raise


def read_small_regular_file(
    path: str, most: int = SMALL, *, required_owner_uid: Optional[int] = None, error: Type[Untrusted] = Untrusted
) -> bytes:
    """A small file, whole. Raises `error` also when it is larger than `most` bytes, FileNotFoundError, OSError."""
    fd, status = open_regular_file_to_read(path, required_owner_uid=required_owner_uid, error=error)
    try:
        return read_all_or_raise_too_large(fd, path, status.st_size, most, error)
    finally:
        os.close(fd)


def read_file_or_pipe(
    path: str, most: int = SMALL, *, seconds: float = PIPE_SECONDS, opener: Optional[Callable[[str], int]] = None
) -> bytes:
    """Return the bytes of a file that a command line names: what a link leads to, too, and of a pipe what is
    written within `seconds`, as `<(command)` of a shell gives one.

    `opener`: in place of `open_nonblocking`, as `source_owner.open_nonblocking_as_source_owner`. The directory may be
    another user's, who can put a fifo there to which nobody writes. Raises Untrusted also when it is larger
    than `most` bytes, FileNotFoundError, OSError.
    """
    fd = (opener or open_nonblocking)(path)
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            return read_all_or_raise_too_large(fd, path, status.st_size, most, Untrusted)
        if stat.S_ISFIFO(status.st_mode):
            return _read_pipe_to_end_or_raise(fd, path, most, seconds)
        raise unexpected_file_error(path)
    finally:
        os.close(fd)


def open_nonblocking(path: str, _flags: int = 0) -> int:
    """The `opener` of an `open` that reads, for which a fifo to which nobody writes has come to its end."""
    return os.open(path, GIVEN)


def read_all_or_raise_too_large(fd: int, path: str, size: int, most: int, error: Type[Untrusted] = Untrusted) -> bytes:
    """What an open file holds, of `size` bytes when it was opened. Raises `error` where it has more than `most`."""
    if size > most:
        raise too_large_error(path, size, most, error)
    parts: List[bytes] = []
    size = 0
    while size <= most:
        part = os.read(fd, _PIECE)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise too_large_error(path, size, most, error)


def _read_pipe_to_end_or_raise(fd: int, path: str, most: int, seconds: float) -> bytes:
    content = bytearray()
    end = time.monotonic() + seconds
    while len(content) <= most:
        try:
            part = os.read(fd, _PIECE)
        except BlockingIOError:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Untrusted(f"{path} is a pipe that did not end within {seconds:g} s") from None
            continue
        if part:
            content += part
        elif content:
            return bytes(content)
        else:
            raise Untrusted(f"{path} is a pipe without a writer, expected a file")
    raise too_large_error(path, len(content), most)


def create_exclusively(path: str, mode: int = 0o600, *, directory_fd: Optional[int] = None) -> int:
    """A descriptor, for reading and writing, of a file that was not there before, with exactly this mode.

    `directory_fd`: a descriptor of the directory that `path` begins in. Raises FileExistsError when anything of
    that name is there, a link that leads nowhere too, OSError.
    """
    fd = os.open(path, os.O_RDWR | _CREATE, 0o600, dir_fd=directory_fd)
    try:
        os.fchmod(fd, mode)
        return fd
    except BaseException:
        os.close(fd)
        raise


def ensure_own_directory(path: str, mode: int = 0o700) -> None:
    """Make `path`, below a directory that is there, a directory of this process's user.

    One that is there already is kept when it is that user's, and gets this mode.
    Raises Untrusted when it is anything else, with what and whose it is, OSError.
    """
    owner = os.geteuid()
    folder, name = walk.open_parent(path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        fd = os.open(name, DIRECTORY, dir_fd=folder)
    except OSError as err:
        if err.errno in (*MAYBE_NO_FILE, errno.EACCES):
            raise _not_own_directory_error(path, owner) from None
        raise
    finally:
        os.close(folder)
    try:
        status = os.fstat(fd)
        if status.st_uid != owner:
            raise _not_own_directory_error(path, owner)
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _not_own_directory_error(path: str, owner: int) -> Untrusted:
    status = os.lstat(path)
    return Untrusted(
        f"{path} already exists and is not a directory of uid {owner}: {stat.filemode(status.st_mode)} of uid "
        f"{status.st_uid}",
        hint=f"look at it, then have its owner or root remove it: ls -ld {path}",
    )
