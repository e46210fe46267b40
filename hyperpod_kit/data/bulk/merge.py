"""Small files into tars of about 100 MiB, which are read by ranges, and back, byte for byte.

The tars are plain ones (any tar reads them); a file's path below the source is its name there. `merged.json` lists each
file with its size and digest, and is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, NamedTuple

from hyperpod_kit.data.formats.tar import read_members
from hyperpod_kit.data.reading.listing import SkippedEntries, describe_non_file
from hyperpod_kit.data.reading.local_file import open_regular
from hyperpod_kit.errors import DataError, NoData, Untrusted
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor, files, parse, source_owner
from hyperpod_kit.untrusted.text import clean_one_line, counted

LIST_FILE = "merged.json"
FORMAT = "hpk-merged/1"
_MAX_LIST_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_TAR_NAME = re.compile(r"[0-9]{6,18}\.tar")
_HEADER_BYTES = 1024
"""About what a file costs in a tar."""
_SECTOR, _MIN_HOLE = 512, 1 << 20
"""Bytes of a block as the kernel counts them, and that a file has more than its blocks, where it has holes: what a file
system compresses, or keeps in its own tables, has none."""

log = logging.getLogger("hyperpod_kit.data")


@dataclass(frozen=True)
class MergeReport:
    """Counts of a merge."""

    files: int
    tars: int
    bytes: int


def merge_into_tars(source: str, out: str, *, size: int, progress: Callable[[int, int], None]) -> MergeReport:
    """Put all files of a directory into tars of about `size` bytes; a link to a file is that file.

    Raises DataError, OSError.
    """
    files = []
    if os.path.isdir(source):
        files = list(_find_files(source))
    if not files:
        raise NoData(f"{source} is not a directory that contains files", hint="give the directory of the files")
    by_descriptor.make_directories(out)
    if os.path.exists(os.path.join(out, LIST_FILE)):
        raise DataError(f"{out} already has merged files", hint=f"use another directory, or: rm -r {out}")
    total = sum(length for _, length in files)
    files.reverse()  # taken from the end
    listed: dict[str, list[object]] = {}
    done = number = 0
    while files:
        group = [files.pop()]
        filled = group[0][1] + _HEADER_BYTES
        while files and filled + files[-1][1] <= size:
            filled += files[-1][1] + _HEADER_BYTES
            group.append(files.pop())
        name = f"{number:06d}.tar"
        with atomic_file.open_for_atomic_replace(os.path.join(out, name)) as stream:  # noqa: SIM117  # not in one line on Python 3.8
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path, length in group:
                    listed[path] = [name, length, _add_to_tar(archive, source, path)]
                    done += length
                    progress(done, total)
        number += 1
    made = {"format": FORMAT, "files": listed}
    atomic_file.write_atomically(os.path.join(out, LIST_FILE), json.dumps(made).encode(), durable=True)
    return MergeReport(len(listed), number, done)


def extract_merged_files(merged: str, out: str, *, progress: Callable[[int, int], None]) -> MergeReport:
    """Extract the merged files, each compared with the digest it had. Raises DataError, OSError."""
    entries = _read_merged_list(merged)
    total = sum(entry.size for entry in entries.values())
    done, count, names = 0, 0, sorted({entry.tar for entry in entries.values()})
    for name in names:
        for path, content in _iterate_members_requiring_each_listed(
            os.path.join(merged, os.path.basename(name)), entries
        ):
            target = os.path.join(out, path)
            by_descriptor.make_parents(target)
            with atomic_file.open_for_atomic_replace(target) as stream:
                digest = _copy_and_digest(content, stream)
                if digest != entries[path].digest:
                    raise DataError(
                        f"{clean_one_line(path)} of {name}: expected {entries[path].digest}, found {digest}"
                    )
            done += entries[path].size
            count += 1
            progress(done, total)
    if count != len(entries):
        raise DataError(f"{merged}: {counted(count, 'file')}, expected {len(entries)}")
    return MergeReport(count, len(names), done)


class MergedFile(NamedTuple):
    """A merged file: the name of its tar, its size and its digest."""

    tar: str
    size: int
    digest: str


def _read_merged_list(merged: str) -> dict[str, MergedFile]:
    """Read the list of merged files, by their paths below the source. Raises DataError, OSError."""
    try:
        list_path = os.path.join(merged, LIST_FILE)
        head = parse.parse_json_object(
            files.read_file_or_pipe(list_path, _MAX_LIST_BYTES, opener=source_owner.open_nonblocking_as_source_owner),
            _MAX_LIST_BYTES,
        )
        rows = head["files"].items()
        listed = {path: MergedFile(str(tar), size, str(digest)) for path, (tar, size, digest) in rows}
        if not all(
            type(entry.size) is int and entry.size >= 0 and _is_tar_name(entry.tar) for entry in listed.values()
        ):
            raise ValueError("a file without a size or a tar")
    except FileNotFoundError:
        if not os.path.isdir(merged):
            raise NoData(f"{merged} is not a directory", hint="give a directory that `data merge` wrote") from None
        raise DataError(
            f"{merged} has no {LIST_FILE}: its files were not merged, or the merge did not finish"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, Untrusted) as err:
        raise DataError(f"{merged}/{LIST_FILE} is damaged: {clean_one_line(err)}") from None
    return listed


def _is_tar_name(name: str) -> bool:
    return _TAR_NAME.fullmatch(name) is not None


def _iterate_members_requiring_each_listed(
    tar: str, listed: Mapping[str, MergedFile]
) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (path, stream) of each file of a tar; one that is not as listed is an error. Raises DataError, OSError."""
    name = os.path.basename(tar)
    with open_regular(tar) as stream:
        try:
            for archive, member in read_members(stream):
                if member.name not in listed or os.path.isabs(member.name) or ".." in member.name.split("/"):
                    problem = f"which {LIST_FILE} does not list, or which leads out of the directory"
                    raise DataError(f"{name} has {clean_one_line(member.name)!r}, {problem}")
                content = None
                if member.isreg():
                    content = archive.extractfile(member)
                if content is None or member.size != listed[member.name].size:
                    raise DataError(
                        f"{clean_one_line(member.name)} of {name} is not a file of {listed[member.name].size} bytes"
                    )
                yield member.name, content
        except ValueError as err:
            raise DataError(f"{name} is damaged: {clean_one_line(err)}") from None


def _copy_and_digest(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy the rest of a file and return its digest. Raises DataError where a tar ends too early, OSError."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        while part := source.read(_PIECE_BYTES):
            digest.update(part)
            target.write(part)
    except tarfile.ReadError as err:
        raise DataError(f"a tar ends too early: {clean_one_line(err)}") from None
    return digest.hexdigest()


def _find_files(source: str) -> Iterator[tuple[str, int]]:
    """List (path below the source, size), sorted, so that the files of one sample stay together: regular files, and
    what links to files lead to.

    What else there is, the log says.
    """
    paths, left_out, waiting, holes = [], SkippedEntries(), [""], 0
    while waiting:
        folder = waiting.pop()
        with source_owner.thread_acting_as_source_owner(), os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.is_file():
                    status = entry.stat()
                    holes += status.st_size - status.st_blocks * _SECTOR >= _MIN_HOLE
                    paths.append((path, status.st_size))
                else:
                    left_out.add(describe_non_file(entry), entry.path)
    left_out.log_summary(source)
    if holes:
        log.warning(
            "%s below %r: holes are zeros in a tar", counted(holes, "file with holes", "files with holes"), source
        )
    yield from sorted(paths)


def _add_to_tar(archive: tarfile.TarFile, source: str, path: str) -> str:
    """Put a file into a tar and return its digest."""
    file_path = os.path.join(source, path)
    with open_regular(file_path) as stream:
        data = stream.read()
        info = archive.gettarinfo(arcname=path, fileobj=stream)
    info.type, info.linkname, info.size = tarfile.REGTYPE, "", len(data)
    archive.addfile(info, io.BytesIO(data))
    return _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
