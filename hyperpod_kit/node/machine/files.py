"""Files that are written whole or not at all, and only when they differ.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from typing import Any, Optional

from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.files import open_nonblocking

PARTIAL = re.compile(r"(?P<name>.+?)\.(?P<process>[0-9]{1,9})\.[0-9a-f]{16}\.partial")
"""The name that `atomic_file` gives to a file that is not complete yet."""


def read_text(path: str) -> Optional[str]:
    """Text of a file, None when there is none. Raises OSError for anything else."""
    try:
        # A fifo in its place must not be waited for.
        with open(path, encoding="utf-8", errors="surrogateescape", opener=open_nonblocking) as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_if_different(path: str, text: str, mode: int = 0o644) -> bool:
    """Make `path` hold `text`; True when it did not before. A reader sees the old text or the new, never a part."""
    if read_text(path) == text:
        return False
    _write(path, text, mode, durable=True)
    return True


def _write(path: str, text: str, mode: int, *, durable: bool = False) -> None:
    """Replace the file atomically; no link of another's on the way to `path` is followed. `durable`: sync it,
    and delete the partial files that earlier writers left."""
    folder, name = os.path.split(path)
    directory = walk.open_directory(folder, make=True)
    try:
        if durable:
            _remove_dead_writers_partials_in(directory, name)
        data = text.encode("utf-8", "surrogateescape")
        atomic_file.write_atomically_in_directory(directory, name, data, mode, durable=durable)
    finally:
        os.close(directory)


def remove_partials_of_dead_writers(directory: str, name: str = "") -> None:
    """Delete the partial files of the file `name`, or of any, whose writers were killed before they
    could put them in place."""
    handle = walk.open_directory(directory)
    try:
        _remove_dead_writers_partials_in(handle, name)
    finally:
        os.close(handle)


def _remove_dead_writers_partials_in(directory: int, name: str) -> None:
    for file_name in os.listdir(directory):
        match = PARTIAL.fullmatch(file_name)
        if match is None or name not in ("", match["name"]):
            continue
        try:
            os.kill(int(match["process"]), 0)
        except ProcessLookupError:
            with contextlib.suppress(FileNotFoundError):
                entry = os.stat(file_name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(entry.st_mode) and entry.st_uid == os.geteuid():
                    os.unlink(file_name, dir_fd=directory)
        except OSError:
            continue  # somebody else's process: he is at work


def read_json(path: str) -> Optional[Any]:
    """Return what a JSON file holds; None when it is not there or was cut off by a crash."""
    text = read_text(path)
    try:
        if text is None:
            return None
        return json.loads(text)
    except ValueError:
        return None


def write_json(path: str, data: Any) -> None:
    """Write `data` as JSON, whole or not at all."""
    write_if_different(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def write_volatile(path: str, text: str, mode: int = 0o644) -> None:
    """Make `path` hold `text`, whole or not at all for a reader. Not for what must outlive a crash of the machine."""
    _write(path, text, mode)


def write_volatile_json(path: str, data: Any) -> None:
    """Write `data` as one line of JSON with `write_volatile`."""
    write_volatile(path, json.dumps(data, sort_keys=True) + "\n")


def try_write_volatile_json(path: str, data: Any) -> None:
    """`write_volatile_json` for what makes later work better and must not keep this work from being done."""
    with contextlib.suppress(OSError):
        write_volatile_json(path, data)
