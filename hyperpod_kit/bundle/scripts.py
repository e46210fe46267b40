"""The configuration's own scripts on their way into the bundle: each file below a script's directory, as it is.

What would not start on a node is refused here, and by `validate` already: a node must not be where one learns it. Files
and directories whose names begin with a dot stay behind, as a repository's own do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from hyperpod_kit.bundle import portable
from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.rules.scripts import AT
from hyperpod_kit.config.settings import ListedScript, Settings
from hyperpod_kit.errors import BundleError

LARGEST = 50 << 20
"""Bytes of one script's files: each node downloads them at its creation."""


def files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """(place in the bundle, content) of every file of every script.

    Raises BundleError when a file is not there, is no plain file or would not start on a node.
    """
    for listed in settings.scripts:
        yield from _files(settings.directory, listed)


def findings(settings: Settings) -> Iterator[Finding]:
    """What `files` would raise, as findings of the configuration, one for each script."""
    for index, listed in enumerate(settings.scripts):
        try:
            for _ in _files(settings.directory, listed):
                pass
        except BundleError as err:
            yield Finding("HPK-O010", f"{AT}[{index}].path", err.message, err.hint or "Correct the path")


def _files(directory: Path, listed: ListedScript) -> Iterator[tuple[str, bytes]]:
    script, top = listed.script, directory / listed.path
    if top.is_symlink() or not top.exists():
        what = "is a symbolic link" if top.is_symlink() else "is not there"
        raise BundleError(f"{top} {what}", hint=f"put the files of the script {script.name} there, or correct `path`")
    places = {top.name: top} if top.is_file() else dict(_below(top))
    if script.run not in places:
        raise BundleError(
            f"{top} has no {script.run!r}, which the script {script.name} starts",
            hint=f"write `run`: one of {', '.join(sorted(places)[:5])}" if places else "it has no files at all",
        )
    size = 0
    for place, path in sorted(places.items()):
        try:
            data = path.read_bytes()
        except OSError as err:
            raise BundleError(f"{path}: {err.strerror}", hint="make it readable, or leave it out") from err
        size += len(data)
        if size > LARGEST:
            raise BundleError(
                f"{top} has more than {LARGEST >> 20} MiB", hint="keep large files in S3, and fetch them in the script"
            )
        if place == script.run:
            _starts(path, data)
        portable.check(f"{script.place}{place}", data)
        yield f"{script.place}{place}", data


def _below(top: Path) -> Iterator[tuple[str, Path]]:
    """(path below `top`, file) of all that travels."""
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        links = [name for name in (*folders, *names) if os.path.islink(os.path.join(folder, name))]
        for name in (name for name in names if not name.startswith(".")):
            path = Path(folder, name)
            if not path.is_file() or name in links:
                links.append(name)
                continue
            yield path.relative_to(top).as_posix(), path
        if links:
            raise BundleError(
                f"{Path(folder, links[0])} is a link or no plain file, which S3 cannot keep", hint="put the file there"
            )


def _starts(path: Path, data: bytes) -> None:
    first = data[: data.find(b"\n") + 1]
    if not first.startswith(b"#!/"):
        raise BundleError(f"{path} does not begin with #!/, so no node can start it", hint="begin it with #!/bin/bash")
    if first.endswith(b"\r\n"):
        raise BundleError(f"{path} has Windows line ends, with which no script starts", hint=f"dos2unix {path}")
