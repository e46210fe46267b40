"""Small files into tars of about 100 MiB, which are read by ranges, and back, byte for byte.

The tars are plain ones (any tar reads them); a file's path below the source is its name there. `merged.json` lists each
file with its size and digest, and is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.data.reading.listing import LeftOut, kind_of
from hyperpod_kit.errors import DataError, NoData
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor, parse

LIST = "merged.json"
FORMAT = "hpk-merged/1"
_LARGEST = 1 << 30
_HEADER = 1024
"""About what a file costs in a tar."""


@dataclass(frozen=True)
class MergeReport:
    """What was put where."""

    files: int
    tars: int
    bytes: int


def merge(source: str, out: str, *, size: int, progress: Callable[[int, int], None]) -> MergeReport:
    """All files of a directory into tars of about `size` bytes; a link to a file is that file.

    Raises DataError, OSError.
    """
    files = list(_files(source)) if os.path.isdir(source) else []
    if not files:
        raise NoData(f"{source} is no directory with files", hint="name the directory of the files")
    by_descriptor.make_directories(out)
    if os.path.exists(os.path.join(out, LIST)):
        raise DataError(f"{out} has merged files already", hint=f"another directory, or: rm -r {out}")
    total = sum(length for _, length in files)
    files.reverse()  # taken from the end
    listed: dict[str, list[object]] = {}
    done = number = 0
    while files:
        group = [files.pop()]
        filled = group[0][1] + _HEADER
        while files and filled + files[-1][1] <= size:
            filled += files[-1][1] + _HEADER
            group.append(files.pop())
        name = f"{number:06d}.tar"
        with atomic_file.replacing(os.path.join(out, name)) as stream:  # noqa: SIM117  # not in one line on Python 3.8
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path, length in group:
                    listed[path] = [name, length, _add(archive, source, path)]
                    done += length
                    progress(done, total)
        number += 1
    made = {"format": FORMAT, "files": listed}
    atomic_file.replace(os.path.join(out, LIST), json.dumps(made).encode(), durable=True)
    return MergeReport(len(listed), number, done)


def split(merged: str, out: str, *, progress: Callable[[int, int], None]) -> MergeReport:
    """The files again, each compared with the digest it had. Raises DataError, OSError."""
    try:
        head = parse.json_object(Path(merged, LIST).read_bytes(), _LARGEST)
    except FileNotFoundError:
        if not os.path.isdir(merged):
            raise NoData(f"{merged} is no directory", hint="name a directory that `data merge` wrote") from None
        raise DataError(f"{merged} has no {LIST}: what is there was not merged, or not to its end") from None
    except ValueError as err:
        raise DataError(f"{merged}/{LIST} is damaged: {err}") from None
    listed = head["files"]
    total = sum(int(one[1]) for one in listed.values())
    done, found, names = 0, 0, sorted({str(one[0]) for one in listed.values()})
    for name in names:
        with tarfile.open(os.path.join(merged, os.path.basename(name))) as archive:
            for member in archive:
                if member.name not in listed or os.path.isabs(member.name) or ".." in member.name.split("/"):
                    raise DataError(f"{name} has {member.name!r}, which {LIST} has not, or which leads elsewhere")
                part = archive.extractfile(member)
                assert part is not None
                data = part.read()
                if _digest(data) != listed[member.name][2]:
                    raise DataError(
                        f"{member.name} of {name}: expected {listed[member.name][2]}, found {_digest(data)}"
                    )
                path = os.path.join(out, member.name)
                by_descriptor.make_parents(path)
                atomic_file.replace(path, data)
                done += len(data)
                found += 1
                progress(done, total)
    if found != len(listed):
        raise DataError(f"{merged}: {found} files, expected {len(listed)}")
    return MergeReport(found, len(names), done)


def _files(source: str) -> Iterator[tuple[str, int]]:
    """(path below the source, size), sorted, so that the files of one sample stay together: regular files, and what
    links to files lead to. What else there is, the log says."""
    found, left_out, waiting = [], LeftOut(), [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.is_file():
                    found.append((path, entry.stat().st_size))
                else:
                    left_out.add(kind_of(entry), entry.path)
    left_out.say(source)
    yield from sorted(found)


def _add(archive: tarfile.TarFile, source: str, path: str) -> str:
    """Put a file into a tar; its digest."""
    place = os.path.join(source, path)
    data = Path(place).read_bytes()
    with open(place, "rb") as stream:
        info = archive.gettarinfo(arcname=path, fileobj=stream)
    info.type, info.linkname, info.size = tarfile.REGTYPE, "", len(data)
    archive.addfile(info, io.BytesIO(data))
    return _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
