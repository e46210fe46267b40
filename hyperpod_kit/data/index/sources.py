"""From what the user named (files, directories, patterns, `s3://`) to a list of files with their sizes."""

from __future__ import annotations

import functools
import glob
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyperpod_kit.data.formats.table import format_of
from hyperpod_kit.data.reading import objects
from hyperpod_kit.data.reading.listing import bounded_read, is_directory, listed, storage_of
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.errors import DataError, NoData

_AT_A_TIME = 256
"""Names that fit a pattern, of one call."""


class FoundFile(NamedTuple):
    """A file to index: the number of its source, its path below it, and what it is now."""

    source: int
    path: str
    format: str
    size: int
    mtime_ns: int


class FoundSources(NamedTuple):
    """The sources as absolute places, their files in the order of their paths, and how many files were of no format."""

    sources: tuple[str, ...]
    files: list[FoundFile]
    passed_over: int


def look(sources: Sequence[str], mounts: SourceMounts, *, format: str | None = None) -> FoundSources:
    """All files of the sources. `format`: of all files, whatever they are called.

    Names that begin with a dot or an underscore are passed over in directories, as Hadoop and pyarrow do.
    Raises NoData for a source where nothing is, DataError for one without files of a known format, DataUnavailable for
    a mount that does not answer.
    """
    places: list[str] = []
    files: list[FoundFile] = []
    passed_over = 0
    for words in sources:
        there = list(_remote(words)) if words.startswith("s3://") else list(_local(words, mounts))
        known = [
            (base, path, kind, size, mtime)
            for base, path, size, mtime in there
            if (kind := format or format_of(path or base)) is not None
        ]
        passed_over += len(there) - len(known)
        if not there:
            raise NoData(f"{words}: there is nothing there", hint="is it mounted here, and is the name right?")
        if not known:
            raise DataError(
                f"{words}: no files of a known format among {len(there)}",
                hint="name the format: hyperpod-kit data index SRC --format lines",
            )
        for base, path, kind, size, mtime in known:
            if base not in places:
                places.append(base)
            files.append(FoundFile(places.index(base), path, kind, size, mtime))
    ordered = sorted(set(files), key=lambda one: (one.source, one.path))
    return FoundSources(tuple(places), ordered, passed_over)


def _local(words: str, mounts: SourceMounts) -> Iterator[tuple[str, str, int, int]]:
    """(source, path below it, size, mtime) of each file."""
    if is_directory(mounts, words):
        base = os.path.abspath(words)
        for path, size, mtime in listed(mounts, base, lambda name: name[0] not in "._"):
            yield base, path, size, mtime
        return
    base = os.path.abspath(_fixed_part(words))
    with storage_of(words):
        if bounded_read(mounts, base, lambda: os.path.exists(words)):
            folder, name = os.path.split(os.path.abspath(words))
            yield bounded_read(mounts, folder, lambda: _one(folder, name))
            return
        is_directory(mounts, base)  # a pattern finds nothing where a mount is dead
        matching = glob.iglob(words, recursive=True)
        while some := bounded_read(mounts, base, lambda: list(itertools.islice(matching, _AT_A_TIME))):
            yield from bounded_read(mounts, base, functools.partial(_files, base, some))


def _files(base: str, paths: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Those that are files now. One that may not be looked at is an error: left out, nobody would miss it."""
    rows = []
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            below = os.path.relpath(os.path.abspath(path), base)
            rows.append((base, below, status.st_size, status.st_mtime_ns))
    return rows


def places_of(names: Sequence[str]) -> list[str]:
    """The directories and files in which sources lie that are on mounts of this machine."""
    local = [name for name in names if not name.startswith("s3://")]
    return [_fixed_part(name) if glob.has_magic(name) else name for name in local]  # without a look at a mount


def _fixed_part(pattern: str) -> str:
    """The directory of a pattern above its first wildcard."""
    parts: list[str] = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return "/".join(parts) or ("/" if pattern.startswith("/") else ".")


def _one(base: str, path: str) -> tuple[str, str, int, int]:
    found = os.stat(os.path.join(base, path))
    return base, path, found.st_size, found.st_mtime_ns


def _remote(url: str) -> Iterator[tuple[str, str, int, int]]:
    fixed = url if not glob.has_magic(url) else _fixed_part(url)
    for key, size, mtime in objects.listed(fixed, url if fixed != url else None):
        yield fixed.rstrip("/"), key, size, mtime
