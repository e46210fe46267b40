"""Files that are written whole or not at all, and only when they differ.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

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
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
    return True


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
