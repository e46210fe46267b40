"""The way to a directory of which a part may be another user's: no link that he has laid is followed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import List

from hyperpod_kit.errors import Untrusted

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


def directory(path: str, *, make: bool = False) -> int:
    """A descriptor of the directory `path`, for `dir_fd=`. `make`: make what is not there of it.

    Links of root and of this process's user are followed, /var/run for one. Raises Untrusted for a link of anybody
    else, OSError.
    """
    todo: List[str] = path.split("/")[::-1]
    links = 0
    here = os.open("/" if path.startswith("/") else ".", _STEP)
    try:
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            there = _step(name, here, make)
            found = os.fstat(there)
            if not stat.S_ISLNK(found.st_mode):
                os.close(here)
                here = there
                continue
            try:
                links += 1
                if found.st_uid not in (0, os.geteuid()):
                    raise Untrusted(
                        f"{name} on the way to {path} is a symbolic link of uid {found.st_uid}, expected a directory",
                        hint=f"namei -l {path}",
                    )
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink("", dir_fd=there)
            finally:
                os.close(there)
            todo += target.split("/")[::-1]
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", _STEP)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def _step(name: str, here: int, make: bool) -> int:
    if make:
        try:
            return os.open(name, _STEP, dir_fd=here)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=here)
    return os.open(name, _STEP, dir_fd=here)
