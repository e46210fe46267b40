"""A page in shared memory in which a user's program tells the node's checks something: a line of JSON, filled up.

It is written in place: a page that is there can be written where no memory is left. Who reads it is root, and believes
nothing of it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Any, Callable, Dict, List, Mapping, Match, NamedTuple, Optional, Pattern, TypeVar

from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.untrusted import by_descriptor, parse
from hyperpod_kit.untrusted.dirfd import reopen_path_fd

PAGE = 4096
MOST, MOST_OF_ONE = 64, 16
"""Notes that are read, and of those of one user: nobody crowds out the others."""

T = TypeVar("T")


class FoundPage(NamedTuple):
    """What lies under a name that could be a note's. `fd`: open to read."""

    uid: int
    name: Match[str]
    fd: int

    def read_json_body(self) -> Any:
        """Read the page and parse its JSON. Raises OSError, ValueError."""
        if os.fstat(self.fd).st_size > PAGE:
            raise ValueError(f"expected at most {PAGE} bytes")
        return parse.parse_json(os.pread(self.fd, PAGE, 0))


def open_or_create_own(path: str) -> int:
    """A descriptor to write the note that is ours, made where there is none. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with by_descriptor.parent_directory(path) as (folder, name):
        fd = os.open(name, flags, 0o600, dir_fd=folder)
    status = os.fstat(fd)
    if (status.st_uid, status.st_nlink, status.st_size in (0, PAGE)) != (os.geteuid(), 1, True):
        os.close(fd)
        raise PermissionError(errno.EPERM, "not a note of ours", path)
    return fd


def write_json_page(fd: int, body: Mapping[str, Any]) -> None:
    """Write the JSON over the whole page, padded with spaces. Raises OSError."""
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    os.pwrite(fd, text.ljust(PAGE), 0)


def read_notes_of_all_users(
    folder: str, ending: str, pattern: Pattern[str], parse_note: Callable[[FoundPage], Optional[T]]
) -> List[T]:
    """What `read` makes of the files with such names, each of the user whom its name says; what it answers None to, or
    raises OSError or ValueError at, is passed over. Raises OSError."""
    notes: List[T] = []
    counts: Dict[int, int] = {}
    with contextlib.closing(shm_paths.iter_user_files_as_uid_name_fd(folder, ending, MOST_OF_ONE)) as files:
        for uid, name, path_fd in files:
            match = pattern.fullmatch(name)
            if match is None or counts.get(uid, 0) >= MOST_OF_ONE:
                continue
            note = _reopen_and_parse(uid, match, path_fd, parse_note)
            if note is not None:
                counts[uid] = counts.get(uid, 0) + 1
                notes.append(note)
            if len(notes) == MOST:
                break
    return notes


def _reopen_and_parse(
    uid: int, name: Match[str], path_fd: int, parse_note: Callable[[FoundPage], Optional[T]]
) -> Optional[T]:
    try:
        fd = reopen_path_fd(path_fd, os.O_RDONLY)
        try:
            return parse_note(FoundPage(uid, name, fd))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def is_count(value: object) -> bool:
    """Return whether it is an int from 0 up to 2**63, as JSON has a number of steps, saves or attempts."""
    return type(value) is int and 0 <= value < 2**63


def is_number_of_seconds(value: object) -> bool:
    """Return whether it is a number of Unix seconds, as JSON has them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11
