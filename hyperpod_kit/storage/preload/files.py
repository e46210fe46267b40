"""Which files: everything below directories, or the lines of a list."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from hyperpod_kit.errors import UsageError


@dataclass(frozen=True)
class WantedFile:
    """A regular file and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class PreloadList:
    """`unread`: what could not be looked at, one sentence each: what is in there stays unknown."""

    files: tuple[WantedFile, ...]
    unread: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(one.size for one in self.files)


def listed(places: Sequence[str], files_from: Optional[Path] = None) -> PreloadList:
    """Every regular file of the places and of the list, each path once, in a stable order.

    Links are not followed below a place. Raises UsageError for a place that is not there.
    """
    found: dict[str, int] = {}
    unread: list[str] = []
    for place in [*places, *_lines(files_from)]:
        whole = os.path.abspath(place)
        try:
            status = os.stat(whole)
        except OSError as err:
            raise UsageError(
                f"{place}: {err.strerror}", hint="is it mounted here? hyperpod-kit validate-mounts"
            ) from err
        if stat.S_ISDIR(status.st_mode):
            found.update(_below(whole, unread))
        elif stat.S_ISREG(status.st_mode):
            found[whole] = status.st_size
    return PreloadList(tuple(WantedFile(path, size) for path, size in found.items()), tuple(unread))


def _lines(path: Optional[Path]) -> list[str]:
    if path is None:
        return []
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}") from err
    # With `find -print0` names may have ends of lines in them.
    return [line for line in text.split("\0" if "\0" in text else "\n") if line]


def _below(directory: str, unread: list[str]) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(directory) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError as err:
        unread.append(f"{directory}: {err.strerror}")
        return
    for entry in inside:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, unread)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False).st_size
        except OSError as err:
            unread.append(f"{entry.path}: {err.strerror}")
