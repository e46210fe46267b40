"""Files that are written whole or not at all, and only when they differ.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Optional


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
    remove_partials(path)
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
    return True


def remove_partials(path: str) -> None:
    """Remove what a writer of `path` left who was killed before he could put it in place."""
    directory, name = os.path.split(path)
    for found in os.listdir(directory):
        process = found[len(name) + 1:-len(".partial")]
        if found.startswith(name + ".") and found.endswith(".partial") and process.isdigit():
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
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
    os.replace(partial, path)


def write_volatile_json(path: str, data: Any) -> None:
    """Write `data` as one line of JSON with `write_volatile`."""
    write_volatile(path, json.dumps(data, sort_keys=True) + "\n")
