"""Directories of ours in places where others may write: never a link or a directory that somebody else put there first.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import stat

from hyperpod_kit.errors import MountFailed


def own_directory(path: str, mode: int) -> None:
    """Make `path` a directory that belongs to this process's user, with exactly this mode.

    Raises MountFailed when it is anything else: whoever may write beside it could have laid a trap.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise MountFailed(f"{path} is there already and is not ours: "
                              f"{stat.filemode(found.st_mode)} of uid {found.st_uid}",
                              hint=f"look at it, then remove it: rm -r {path}") from None
    os.chmod(path, mode)
