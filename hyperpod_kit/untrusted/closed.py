"""A directory in which nobody but this process's user, and root, can exchange anything: for programs and libraries that
name by path, again and again, what they write there.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import stat

from hyperpod_kit.errors import UntrustedPlace
from hyperpod_kit.untrusted import walk


def resolve_directory_closed_to_others(path: str) -> str:
    """Return the path of the directory without any link, so that nobody else can make it lead elsewhere.

    Each directory down to it must be this user's or root's, and one that others may write to must have the
    sticky bit; the last may not be such a one at all. Raises UntrustedPlace where that is not so, and where
    a link of another user lies on the way; OSError.
    """
    handle = walk.open_directory(path)
    try:
        name = os.readlink(f"/proc/self/fd/{handle}")
        _require_directory_closed_to_others(name, os.fstat(handle), sticky_is_enough=False)
        parent = name
        while parent != "/":
            parent = os.path.dirname(parent)
            _require_directory_closed_to_others(parent, os.stat(parent, follow_symlinks=False), sticky_is_enough=True)
        # Nobody else can exchange anything on that way now: does it still lead to what was reached?
        if not os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(handle)):
            raise UntrustedPlace(f"{path} was replaced while it was opened", hint=f"namei -l {path}")
        return name
    finally:
        os.close(handle)


def _require_directory_closed_to_others(path: str, facts: os.stat_result, *, sticky_is_enough: bool) -> None:
    owned = facts.st_uid in (0, os.geteuid())
    group_writes = facts.st_mode & stat.S_IWGRP and facts.st_gid not in (0, os.getegid())
    open_to_others = bool(group_writes or facts.st_mode & stat.S_IWOTH)
    if sticky_is_enough and facts.st_mode & stat.S_ISVTX:
        open_to_others = False
    if stat.S_ISDIR(facts.st_mode) and owned and not open_to_others:
        return
    raise UntrustedPlace(
        f"{path} is {stat.filemode(facts.st_mode)} of uid {facts.st_uid}, expected a directory that only uid "
        f"{os.geteuid()} may write to",
        hint=f"choose another directory, or restrict this one: ls -ld {path}",
    )
