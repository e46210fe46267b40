"""A file of our own in a directory where others may have put theirs in its place.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted.dirfd import open_path_fd_refusing_mount, reopen_path_fd


def open_own_single_link_file(path: str, flags: int) -> Tuple[int, os.stat_result]:
    """A descriptor of a regular file of this process's user that has no other name, and its facts. Waits for nobody.

    Raises Untrusted for anything else in its place, with what and whose it is, FileNotFoundError, OSError.
    """
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = open_path_fd_refusing_mount(os.path.basename(path), folder)
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        raise Untrusted(
            f"something is mounted on {path}, expected a file of uid {os.geteuid()}", hint=f"findmnt {path}"
        ) from None
    finally:
        os.close(folder)
    try:
        status = os.fstat(fd)
        if status.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed just now", path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise Untrusted(
                f"{path} is {stat.filemode(status.st_mode)} of uid {status.st_uid} with {status.st_nlink} "
                f"names, expected a file of uid {os.geteuid()} with one",
                hint=f"ls -l {path}",
            )
        return reopen_path_fd(fd, flags), status
    finally:
        os.close(fd)
