"""Files that are written whole or not at all, and only when they differ.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Iterator, Optional, TextIO


def read_text(path: str) -> Optional[str]:
    """Text of a file, None when there is none. Raises OSError for anything else."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_if_different(path: str, text: str, mode: int = 0o644) -> bool:
    """Make `path` hold `text`; True when it did not before. A reader sees the old text or the new, never a part."""
    if read_text(path) == text:
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_partials(*os.path.split(path))
    with _replacing(path, mode) as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return True


@contextlib.contextmanager
def _replacing(path: str, mode: int) -> Iterator[TextIO]:
    """A file beside `path` that takes its place when it is whole, and of which nothing stays when it cannot be."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
            os.fchmod(stream.fileno(), mode)
            yield stream
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def remove_partials(directory: str, name: str = "") -> None:
    """Remove what writers of the file `name`, or of any, left who were killed before they could put it in place."""
    for found in os.listdir(directory):
        owner, _, process = found[:-len(".partial")].rpartition(".")
        if found.endswith(".partial") and process.isdigit() and name in ("", owner):
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{found}")
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
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with _replacing(path, mode) as stream:
        stream.write(text)


def write_volatile_json(path: str, data: Any) -> None:
    """Write `data` as one line of JSON with `write_volatile`."""
    write_volatile(path, json.dumps(data, sort_keys=True) + "\n")


def jot(path: str, data: Any) -> None:
    """`write_volatile_json` for what makes later work better and must not keep this work from being done."""
    with contextlib.suppress(OSError):
        write_volatile_json(path, data)
