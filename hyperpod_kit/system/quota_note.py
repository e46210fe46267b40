"""A file in a directory that says which limit it has, so that who comes to it reads more than the kernel's one word.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Dict, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system.atomic_file import write_atomically_in_directory
from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.files import read_small_regular_file
from hyperpod_kit.untrusted.parse import parse_json_object

NAME = ".hyperpod-kit-quota.json"
_MOST = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_quota_note(directory: str, limits: Dict[str, int], directory_fd: Optional[int] = None) -> None:
    """Write a note of the limits (name -> bytes or files) to the directory. No link of another user on the way
    is followed.

    `directory_fd`: a descriptor of the directory, which stays open. Raises Untrusted, OSError.
    """
    if directory_fd is None:
        folder = walk.open_directory(directory)
    else:
        folder = os.open(".", _DIRECTORY, dir_fd=directory_fd)
    try:
        body = json.dumps({"format": "hpk-quota/1", "directory": directory, **limits}) + "\n"
        write_atomically_in_directory(folder, NAME, body.encode(), 0o644, durable=True)
    finally:
        os.close(folder)


def nearest_quota_note_at_or_above(path: str) -> Optional[Dict[str, Any]]:
    """The note of the nearest directory above `path` that has one; None when there is none that can be read."""
    current = os.path.abspath(path)
    while True:
        try:
            body = parse_json_object(read_small_regular_file(os.path.join(current, NAME), _MOST))
            return {**body, "directory": current}
        except (OSError, Untrusted, ValueError):
            pass
        if current == "/":
            return None
        current = os.path.dirname(current)


def quota_exceeded_hint_or_empty(err: OSError) -> str:
    """What a user can do about an error that says that a quota is used up; nothing for any other error.

    The limits are the note's, which is another's word: what is in force, the file system knows.
    """
    if err.errno != errno.EDQUOT or not isinstance(err.filename, (str, bytes)):
        return ""
    note = nearest_quota_note_at_or_above(os.fsdecode(err.filename))
    if note is None:
        return "; see what fills it: hyperpod-kit storage usage DIRECTORY"
    limits = [f"{note[key]:,} {key}" for key in ("bytes", "files") if isinstance(note.get(key), int) and note[key] > 0]
    where = note["directory"]
    return f"; {where} has a limit of {' and '.join(limits) or 'its own'}: hyperpod-kit storage quota show {where}"
