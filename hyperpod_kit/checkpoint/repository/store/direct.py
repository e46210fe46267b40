"""Direct I/O: past the page cache, where the file system can. Tried, not assumed.

A kernel may take O_DIRECT at open and refuse it at the first transfer (EINVAL), so what counts is a transfer.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets

from hyperpod_kit.checkpoint.repository.store.base import ALIGN

_CANNOT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EISDIR)
PROBE_PREFIX = ".hpk-probe-"


def can_write_direct(folder: int) -> bool:
    """Return whether a file in the directory `folder` can be written with O_DIRECT, by writing a probe file that
    has no name or loses it at once.

    Raise OSError when `folder` cannot be written at all.
    """
    page = mmap.mmap(-1, ALIGN)
    fd, name = _create_direct_probe_file(folder)
    if fd < 0:
        return False
    try:
        return os.pwrite(fd, page, 0) == ALIGN and os.preadv(fd, [page], 0) == ALIGN
    except OSError as err:
        if err.errno in _CANNOT:
            return False
        raise
    finally:
        os.close(fd)
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        page.close()


def _create_direct_probe_file(folder: int) -> tuple[int, str]:
    """Create a file with O_DIRECT and return (descriptor or -1, its name in `folder` or "" when it has none)."""
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder), ""
    name = PROBE_PREFIX + secrets.token_hex(6)
    try:
        return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), name
    except OSError as err:
        # The open may have made the file and then refused the flag.
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        if err.errno in _CANNOT:
            return -1, ""
        raise


def open_direct_for_reading(path: str, status: os.stat_result) -> int:
    """Return a descriptor that reads past the page cache, or -1 where that does not work. Raise nothing.

    `status` is the file that was opened there: another one is not read in its place.
    """
    if status.st_size < ALIGN:
        return -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    page = mmap.mmap(-1, ALIGN)
    try:
        if os.path.samestat(os.fstat(fd), status) and os.preadv(fd, [page], 0) == ALIGN:
            return fd
    except OSError:
        pass
    finally:
        page.close()
    os.close(fd)
    return -1
