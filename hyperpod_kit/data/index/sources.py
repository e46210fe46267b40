"""From what the user named (files, directories, patterns, `s3://`) to a list of files with their sizes."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyperpod_kit.data.formats.table import format_of
from hyperpod_kit.data.reading import objects
from hyperpod_kit.errors import DataError


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


def look(sources: Sequence[str], *, format: str | None = None) -> FoundSources:
    """All files of the sources. `format`: of all files, whatever they are called.

    Names that begin with a dot or an underscore are passed over in directories, as Hadoop and pyarrow do.
    Raises DataError for a source without files.
    """
    places: list[str] = []
    files: list[FoundFile] = []
    passed_over = 0
    for words in sources:
        listed = list(_remote(words)) if words.startswith("s3://") else list(_local(words))
        known = [
            (base, path, kind, size, mtime)
            for base, path, size, mtime in listed
            if (kind := format or format_of(path or base)) is not None
        ]
        passed_over += len(listed) - len(known)
        if not known:
            raise DataError(
                f"{words}: no files of a known format"
                + (f" among {len(listed)}" if listed else ", there is nothing there"),
                hint="name the format: hyperpod-kit data index SRC --format lines",
            )
        for base, path, kind, size, mtime in known:
            if base not in places:
                places.append(base)
            files.append(FoundFile(places.index(base), path, kind, size, mtime))
    ordered = sorted(set(files), key=lambda one: (one.source, one.path))
    return FoundSources(tuple(places), ordered, passed_over)


def _local(words: str) -> Iterator[tuple[str, str, int, int]]:
    """(source, path below it, size, mtime) of each file."""
    if os.path.isdir(words):
        base = os.path.abspath(words)
        for folder, folders, names in os.walk(base):
            folders[:] = sorted(name for name in folders if name[0] not in "._")
            for name in names:
                if name[0] not in "._":
                    yield from _one(base, os.path.relpath(os.path.join(folder, name), base))
        return
    if os.path.exists(words):
        folder, name = os.path.split(os.path.abspath(words))
        yield from _one(folder, name)
        return
    for path in glob.glob(words, recursive=True):
        if os.path.isfile(path):
            base = os.path.abspath(_fixed_part(words))
            yield from _one(base, os.path.relpath(os.path.abspath(path), base))


def _fixed_part(pattern: str) -> str:
    """The directory of a pattern above its first wildcard."""
    parts: list[str] = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return "/".join(parts) or ("/" if pattern.startswith("/") else ".")


def _one(base: str, path: str) -> Iterator[tuple[str, str, int, int]]:
    found = os.stat(os.path.join(base, path))
    yield base, path, found.st_size, found.st_mtime_ns


def _remote(url: str) -> Iterator[tuple[str, str, int, int]]:
    fixed = url if not glob.has_magic(url) else _fixed_part(url)
    for key, size, mtime in objects.listed(fixed, url if fixed != url else None):
        yield fixed.rstrip("/"), key, size, mtime
