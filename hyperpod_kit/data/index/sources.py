"""From what the user named (files, directories, patterns, `s3://`) to a list of files with their sizes."""

from __future__ import annotations

import functools
import glob
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyperpod_kit.data.formats.table import format_by_file_name
from hyperpod_kit.data.reading import objects
from hyperpod_kit.data.reading.listing import (
    call_bounded_as_owner,
    is_directory,
    list_files,
    storage_errors_as_data_unavailable,
)
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.errors import DataError, NoData

_NAMES_PER_CALL = 256
"""Names that fit a pattern, of one call."""


class SourceEntry(NamedTuple):
    """A file to index: the number of its source, its path below it, and what it is now."""

    source: int
    path: str
    format: str
    size: int
    mtime_ns: int


class SourceListing(NamedTuple):
    """The sources as absolute places, their files in the order of their paths, and how many files were of no format."""

    sources: tuple[str, ...]
    files: list[SourceEntry]
    passed_over: int


def list_sources(sources: Sequence[str], mounts: SourceMounts, *, format: str | None = None) -> SourceListing:
    """List all files of the sources. `format`: of all files, whatever they are called.

    Names that begin with a dot or an underscore are passed over in directories, as Hadoop and pyarrow do.
    Raises NoData for a source where nothing is, DataError for one without files of a known format, DataUnavailable for
    a mount that does not answer.
    """
    places: list[str] = []
    files: list[SourceEntry] = []
    passed_over = 0
    for name in sources:
        entries = list(_list_source(name, mounts))
        recognized = [
            (base, path, kind, size, mtime)
            for base, path, size, mtime in entries
            if (kind := format or format_by_file_name(path or base)) is not None
        ]
        passed_over += len(entries) - len(recognized)
        if not entries:
            raise NoData(
                f"no such file or directory: {name}", hint="check the name, and that its file system is mounted"
            )
        if not recognized:
            raise DataError(
                f"{name}: no files of a known format among {len(entries)}",
                hint="give the format: hyperpod-kit data index SRC --format lines",
            )
        for base, path, kind, size, mtime in recognized:
            if base not in places:
                places.append(base)
            files.append(SourceEntry(places.index(base), path, kind, size, mtime))
    ordered = sorted(set(files), key=lambda file: (file.source, file.path))
    return SourceListing(tuple(places), ordered, passed_over)


def _list_source(name: str, mounts: SourceMounts) -> Iterator[tuple[str, str, int, int]]:
    if name.startswith("s3://"):
        return _list_remote(name)
    return _list_local(name, mounts)


def _list_local(pattern: str, mounts: SourceMounts) -> Iterator[tuple[str, str, int, int]]:
    """Yield (source, path below it, size, mtime) of each file."""
    if is_directory(mounts, pattern):
        base = os.path.abspath(pattern)
        for path, size, mtime in list_files(mounts, base, lambda name: name[0] not in "._"):
            yield base, path, size, mtime
        return
    base = os.path.abspath(_directory_above_wildcards(pattern))
    with storage_errors_as_data_unavailable(pattern):
        if call_bounded_as_owner(mounts, base, lambda: os.path.exists(pattern)):
            folder, name = os.path.split(os.path.abspath(pattern))
            yield call_bounded_as_owner(mounts, folder, lambda: _stat_file(folder, name))
            return
        is_directory(mounts, base)  # a pattern finds nothing where a mount is dead
        matching = glob.iglob(pattern, recursive=True)
        while batch := call_bounded_as_owner(mounts, base, lambda: list(itertools.islice(matching, _NAMES_PER_CALL))):
            yield from call_bounded_as_owner(mounts, base, functools.partial(_stat_regular_files, base, batch))


def _stat_regular_files(base: str, paths: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Describe those that are files now. One that may not be looked at is an error: left out, nobody would miss it."""
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


def local_base_paths(source_names: Sequence[str]) -> list[str]:
    """List the directories and files of sources that are on mounts of this machine."""
    local = [name for name in source_names if not name.startswith("s3://")]
    return [
        _directory_above_wildcards(name) if glob.has_magic(name) else name for name in local
    ]  # without a look at a mount


def _directory_above_wildcards(pattern: str) -> str:
    """Return the directory of a pattern above its first wildcard."""
    parts: list[str] = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return "/".join(parts) or ("/" if pattern.startswith("/") else ".")


def _stat_file(base: str, path: str) -> tuple[str, str, int, int]:
    status = os.stat(os.path.join(base, path))
    return base, path, status.st_size, status.st_mtime_ns


def _list_remote(url: str) -> Iterator[tuple[str, str, int, int]]:
    fixed, pattern = url, None
    if glob.has_magic(url):
        fixed, pattern = _directory_above_wildcards(url), url
    for key, size, mtime in objects.list_objects(fixed, pattern):
        yield fixed.rstrip("/"), key, size, mtime
