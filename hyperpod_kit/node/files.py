"""Files that are written whole or not at all, and only when they differ.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from typing import Any, Iterator, Optional, TextIO

from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.files import create

PARTIAL = re.compile(r"(?P<name>.+?)\.(?P<process>[0-9]{1,9})(\.[0-9a-f]{16})?\.partial")
"""NAME.PROCESS.RANDOM.partial; without RANDOM, as releases before 0.6 wrote it."""


def read_text(path: str) -> Optional[str]:
    """Text of a file, None when there is none. Raises OSError for anything else."""
    try:
        # A fifo in its place must not be waited for.
        with open(path, encoding="utf-8", errors="surrogateescape", opener=_at_once) as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def write_if_different(path: str, text: str, mode: int = 0o644) -> bool:
    """Make `path` hold `text`; True when it did not before. A reader sees the old text or the new, never a part."""
    if read_text(path) == text:
        return False
    with _replacing(path, mode, tidy=True) as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return True


@contextlib.contextmanager
def _replacing(path: str, mode: int, *, tidy: bool = False) -> Iterator[TextIO]:
    """A file beside `path` that takes its place when it is whole, and of which nothing stays when it cannot be.

    The directory may be another user's: its name cannot be foreseen, nothing that is there already is opened, and no
    link of his leads elsewhere. `tidy`: remove first what writers before left.
    """
    folder, name = os.path.split(path)
    partial = f"{name}.{os.getpid()}.{os.urandom(8).hex()}.partial"
    directory = walk.directory(folder, make=True)
    try:
        if tidy:
            _remove_partials(directory, name)
        handle = create(partial, mode, directory=directory)
        try:
            with open(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
                yield stream
            os.replace(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=directory)
            raise
    finally:
        os.close(directory)


def remove_partials(directory: str, name: str = "") -> None:
    """Remove what writers of the file `name`, or of any, left who were killed before they could put it in place."""
    handle = walk.directory(directory)
    try:
        _remove_partials(handle, name)
    finally:
        os.close(handle)


def _remove_partials(directory: int, name: str) -> None:
    for found in os.listdir(directory):
        match = PARTIAL.fullmatch(found)
        if match is None or name not in ("", match["name"]):
            continue
        try:
            os.kill(int(match["process"]), 0)
        except ProcessLookupError:
            with contextlib.suppress(FileNotFoundError):
                entry = os.stat(found, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(entry.st_mode) and entry.st_uid == os.geteuid():
                    os.unlink(found, dir_fd=directory)
        except OSError:
            continue  # somebody else's process: he is at work


def read_json(path: str) -> Optional[Any]:
    """What a JSON file of ours holds; None when it is not there or was cut off by a crash."""
    text = read_text(path)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def write_json(path: str, data: Any) -> None:
    """Write `data` as JSON, whole or not at all."""
    write_if_different(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def write_volatile(path: str, text: str, mode: int = 0o644) -> None:
    """Make `path` hold `text`, whole or not at all for a reader. Not for what must outlive a crash of the machine."""
    with _replacing(path, mode) as stream:
        stream.write(text)


def write_volatile_json(path: str, data: Any) -> None:
    """Write `data` as one line of JSON with `write_volatile`."""
    write_volatile(path, json.dumps(data, sort_keys=True) + "\n")


def jot(path: str, data: Any) -> None:
    """`write_volatile_json` for what makes later work better and must not keep this work from being done."""
    with contextlib.suppress(OSError):
        write_volatile_json(path, data)
