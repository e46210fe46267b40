"""The files to copy, by their names below the source, cut into chunks that are numbered alike on all nodes.

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
"""Most bytes that a copy may have: every node has the list of their chunks in memory."""


class CopiedFile(NamedTuple):
    """One file to copy. `path`: below the source, "" for a source that is a file; `name`: below the destination."""

    path: str
    name: str
    size: int
    mode: int
    changed: int  # nanoseconds


class FilePiece(NamedTuple):
    """A chunk: bytes [begin, end) of the file with the number `file`."""

    file: int
    begin: int
    end: int


def listed(source: str) -> List[CopiedFile]:
    """Return every file of a directory, or the one file that `source` is.

    A link to a file counts as the file that it leads to, as in a Hugging Face snapshot. Raises UsageError for an entry
    that is neither a file nor a directory, or links to a directory; Unreachable where the source cannot be read.
    """
    files: List[CopiedFile] = []

    def raised(err: OSError) -> None:
        raise err

    try:
        with source_owner.thread_acting_as_source_owner():
            if not os.path.isdir(source):
                files.append(_copied_file(source, "", os.path.basename(os.path.abspath(source))))
            for folder, folders, names in os.walk(source, onerror=raised):
                folders.sort()
                linked = [subfolder for subfolder in folders if os.path.islink(os.path.join(folder, subfolder))]
                for name in sorted([*names, *linked]):
                    path = os.path.relpath(os.path.join(folder, name), source)
                    files.append(_copied_file(source, path, path))
    except OSError as err:
        raise Unreachable(f"cannot read {err.filename or source}: {err.strerror}") from err
    return files


def _copied_file(source: str, path: str, name: str) -> CopiedFile:
    """Return the regular file at `path` below the source. Raises UsageError where it is none, OSError."""
    location = source
    if path:
        location = os.path.join(source, path)
    file_status = os.stat(location)
    if not stat.S_ISREG(file_status.st_mode):
        file_type = "not a regular file"
        if stat.S_ISDIR(file_status.st_mode):
            file_type = "a link to a directory"
        raise UsageError(f"{os.path.join(source, path)} is {file_type}: only files are copied")
    return CopiedFile(path, name, file_status.st_size, stat.S_IMODE(file_status.st_mode), file_status.st_mtime_ns)


def pieces_of(files: Sequence[CopiedFile], chunk: int = CHUNK) -> List[FilePiece]:
    """Return all chunks in order; an empty file has none. Raises UsageError for more than LARGEST bytes."""
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
    """The plan that all nodes share: the source, its files and their chunks."""

    source: str
    files: Sequence[CopiedFile]
    pieces: Sequence[FilePiece]

    @property
    def digest_of_source_state(self) -> str:
        """Return the digest of the source's state; a copy is resumed only where its journal has the same digest."""
        text = json.dumps([os.path.abspath(self.source), CHUNK, *map(list, self.files)])
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def plan_of(source: str, files: Sequence[CopiedFile]) -> CopyPlan:
    """Return the plan to copy the files. Raises UsageError for more than LARGEST bytes."""
    return CopyPlan(source, files, pieces_of(files))


def as_json(files: Sequence[CopiedFile]) -> List[List[Any]]:
    """Return the files as rows that JSON can hold, which `from_json` reads."""
    return [list(file) for file in files]


def from_json(rows: Any) -> Tuple[CopiedFile, ...]:
    """Return the files that the rows describe.

    Raises ValueError for a row that describes no file, or one whose name leads out of the destination.
    """
    files = []
    for path, name, size, mode, changed in rows:
        if not _is_name_below_destination(name):
            raise ValueError(f"{str(name)[:80]!r} is not a name of a file to copy")
        if not isinstance(path, str) or any(type(number) is not int or number < 0 for number in (size, mode, changed)):
            raise ValueError(f"{name[:80]!r} has a size or time that it cannot have")
        files.append(CopiedFile(path, name, size, mode, changed))
    return tuple(files)


def _is_name_below_destination(name: Any) -> bool:
    """Return whether this is a path below the destination, and not in its state directory."""
    if not isinstance(name, str):
        return False
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return False
    return parts[0] != STATE_DIRECTORY_NAME


STATE_DIRECTORY_NAME = ".hpk-fan-out"
"""Directory below the destination for the incomplete files, the journal and the lock."""
