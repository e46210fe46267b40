"""What is to be copied: files by their names below the source, cut into chunks that have a number for all nodes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any, List, NamedTuple, Sequence, Tuple

from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.untrusted import source_owner

CHUNK = 16 << 20

LARGEST = 16 << 40
"""Bytes that a copy may have: their chunks are a list in memory on every node."""


class CopiedFile(NamedTuple):
    """`path`: below the source, "" for a source that is a file itself; `name`: below the destination."""

    path: str
    name: str
    size: int
    mode: int
    changed: int  # nanoseconds


class FilePiece(NamedTuple):
    """Bytes [begin, end) of a file, by its number."""

    file: int
    begin: int
    end: int


def listed(source: str) -> List[CopiedFile]:
    """Every file of a directory, or one file. A link to a file is what it leads to, as in a Hugging Face snapshot.

    Raises UsageError for what is no file and cannot be copied as one, Unreachable.
    """
    files: List[CopiedFile] = []

    def append_regular_file(path: str, name: str) -> None:
        file_status = os.stat(os.path.join(source, path) if path else source)
        if not stat.S_ISREG(file_status.st_mode):
            what = "a link to a directory" if stat.S_ISDIR(file_status.st_mode) else "no regular file"
            raise UsageError(f"{os.path.join(source, path)} is {what}: only files are copied")
        files.append(
            CopiedFile(path, name, file_status.st_size, stat.S_IMODE(file_status.st_mode), file_status.st_mtime_ns)
        )

    def raised(err: OSError) -> None:
        raise err

    try:
        with source_owner.thread_acting_as_source_owner():
            if not os.path.isdir(source):
                append_regular_file("", os.path.basename(os.path.abspath(source)))
            for folder, folders, names in os.walk(source, onerror=raised):
                folders.sort()
                linked = [subfolder for subfolder in folders if os.path.islink(os.path.join(folder, subfolder))]
                for name in sorted([*names, *linked]):
                    path = os.path.relpath(os.path.join(folder, name), source)
                    append_regular_file(path, path)
    except OSError as err:
        raise Unreachable(f"cannot read {err.filename or source}: {err.strerror}") from err
    return files


def pieces_of(files: Sequence[CopiedFile], chunk: int = CHUNK) -> List[FilePiece]:
    """All chunks in order; an empty file has none. Raises UsageError for more than a plan can have."""
    total = sum(file.size for file in files)
    if total > LARGEST:
        raise UsageError(
            f"the files have {total} bytes, expected at most {LARGEST}", hint="a sparse file? ls -ls shows its blocks"
        )
    return [
        FilePiece(number, begin, min(begin + chunk, file.size))
        for number, file in enumerate(files)
        for begin in range(0, file.size, chunk)
    ]


class CopyPlan(NamedTuple):
    """What all nodes know: the source, its files, their chunks."""

    source: str
    files: Sequence[CopiedFile]
    pieces: Sequence[FilePiece]

    @property
    def digest_of_source_state(self) -> str:
        """Of a source in a certain state: what was begun of it is gone on with, what was begun of another is not."""
        text = json.dumps([os.path.abspath(self.source), CHUNK, *map(list, self.files)])
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def plan_of(source: str, files: Sequence[CopiedFile]) -> CopyPlan:
    return CopyPlan(source, files, pieces_of(files))


def as_json(files: Sequence[CopiedFile]) -> List[List[Any]]:
    return [list(file) for file in files]


def from_json(rows: Any) -> Tuple[CopiedFile, ...]:
    """Raises ValueError for what is no list of files, or leads out of the destination."""
    files = []
    for path, name, size, mode, changed in rows:
        parts = name.split("/") if isinstance(name, str) else [""]
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or parts[0] == STATE_DIRECTORY_NAME:
            raise ValueError(f"{str(name)[:80]!r} is no name of a file to copy")
        if not isinstance(path, str) or any(type(number) is not int or number < 0 for number in (size, mode, changed)):
            raise ValueError(f"{name[:80]!r} has a size or time that it cannot have")
        files.append(CopiedFile(path, name, size, mode, changed))
    return tuple(files)


STATE_DIRECTORY_NAME = ".hpk-fan-out"
"""Directory below the destination: what is not whole yet, and what is known of what is there."""
