"""What everything that stages files shares: the files of a source, and an engine that brings them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, Protocol

from hyperpod_kit.errors import DataError

WORK_DIRECTORY = ".hpk-stage"
"""Directory in the destination for what is under way."""


class StagedFile(NamedTuple):
    """A file or an object of the source, by its path below it. `etag`: "" for a file."""

    path: str
    size: int
    mtime_ns: int
    etag: str = ""


class FetchedPart(NamedTuple):
    """A file that an engine has fetched, not yet in its place: its number in its group, and where it lies."""

    number: int
    part: str


class StageEngine(Protocol):
    """Copies files from a source, one group at a time."""

    def files(self) -> Iterator[StagedFile]:
        """List all files of the source. Raises DataError, OSError."""

    def fetch_skipping_failed(self, group: Sequence[StagedFile], parts_directory: str) -> Iterator[FetchedPart]:
        """Fetch each file of a group to `parts_directory`/number and yield it when it is whole; one that cannot be
        fetched is left out."""

    def is_verified_or_raise_on_mismatch(self, file: StagedFile, part_path: str) -> bool:
        """Return whether the bytes are verified to be the source's; False where only the size can be compared.

        Raises ContentMismatch for other bytes, OSError.
        """

    @property
    def last_error(self) -> str:
        """Return why the last file did not come."""


class ContentMismatch(Exception):
    """The bytes that arrived are not the source's and should be fetched again."""


class FileList:
    """The files of a source, kept in a file: there may be millions."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.files = 0
        self.bytes = 0

    def append_refusing_unsafe_path(self, file: StagedFile) -> None:
        """Add a file. Raises DataError for a path that leads out of the source."""
        if any(part in ("", ".", "..") for part in file.path.split("/")) or file.path.split("/")[0] == WORK_DIRECTORY:
            raise DataError(f"{file.path!r} cannot be the path of a file below the destination")
        self._stream.write(json.dumps(file) + "\n")
        self.files += 1
        self.bytes += file.size

    def groups(self, max_files: int, max_bytes: int) -> Iterator[list[StagedFile]]:
        """Yield all files in groups of at most `max_files` files and, but for a single one, `max_bytes` bytes."""
        self._stream.seek(0)
        group: list[StagedFile] = []
        filled = 0
        for line in self._stream:
            file = StagedFile(*json.loads(line))
            if group and (len(group) == max_files or filled + file.size > max_bytes):
                yield group
                group, filled = [], 0
            group.append(file)
            filled += file.size
        if group:
            yield group


def is_staged_with_size_and_mtime(out: str, file: StagedFile) -> bool:
    """Whether a file is staged: it gets its name when it is verified, and has the source's size and time then."""
    try:
        status = os.stat(os.path.join(out, file.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)
