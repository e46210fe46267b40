"""Where root keeps what it later believes: a directory that nobody else can put in place, rename or write to.

A name under /var/tmp belongs to whoever makes it first, and a directory to whoever owns one of those above it. So
every level is looked at, from the root of the file system down, and the first one that is somebody else's is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import files

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def require_trusted(path: Path) -> None:
    """Check `path` and all directories above it, as far as they exist.

    Raises Untrusted with the first level that somebody else owns or may write to.
    """
    for level in reversed([path, *path.parents]):
        try:
            status = os.lstat(level)
        except FileNotFoundError:
            return
        problem = _find_trust_problem(str(level), status, last=level == path)
        if problem:
            raise Untrusted(
                f"{level} {problem}, so nothing in {path} is believed",
                hint=f"look at it (ls -ld {level}), then move it away or name another place",
            )


def is_trusted(path: Path) -> bool:
    """Return whether `path` exists and `require_trusted` accepts it."""
    try:
        require_trusted(path)
    except Untrusted:
        return False
    return os.path.lexists(path)


def create_trusted_directory(path: Path) -> None:
    """Make `path`, 0700 and with whatever is missing above it; it may be there. Raises Untrusted, OSError."""
    require_trusted(path)
    for level in reversed([path, *path.parents]):
        if not level.exists():
            files.ensure_own_directory(str(level))
    require_trusted(path)


def _find_trust_problem(path: str, status: os.stat_result, last: bool) -> Optional[str]:
    owner = f"of uid {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return f"is {files.describe_if_not_regular_file(path)} {owner}"
    if not stat.S_ISDIR(status.st_mode):
        return f"is not a directory but {files.describe_if_not_regular_file(path) or 'a file'} {owner}"
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {status.st_uid}, expected root or uid {os.geteuid()}"
    # In root's sticky directories, as /tmp is, nobody renames or removes what is another's.
    sticky = status.st_mode & stat.S_ISVTX and status.st_uid == 0 and not last
    if status.st_mode & _OTHERS_WRITE and not sticky:
        return f"may be written to by others ({stat.filemode(status.st_mode)} {owner})"
    return None
