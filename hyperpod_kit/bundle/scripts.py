"""The configuration's own scripts on their way into the bundle: each file below a script's directory, as it is.

What would not start on a node is refused here, and by `validate` already: a node must not be where one learns it. Files
and directories whose names begin with a dot stay behind, as a repository's own do.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Iterator

from hyperpod_kit.bundle import portable
from hyperpod_kit.config.rules.scripts import AT
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import ListedScript, Settings
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.scripts import WITHOUT_FIRST_LINE

LARGEST = 50 << 20
"""Bytes of one script's files: each node downloads them at its creation."""


def read_custom_script_files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield (path in the bundle, content) of every file of every script.

    Raises BundleError when a file is not there, is no plain file or would not start on a node.
    """
    for listed in settings.scripts:
        places = _collect_custom_script_files(settings.directory, listed)
        _require_run_file_startable(listed, places)
        yield from _read_portable_contents_within_limit(listed, places)


def find_custom_script_problems(settings: Settings) -> Iterator[Finding]:
    """Report as findings of the configuration why scripts cannot go into a bundle, at most one for each
    script."""
    for index, listed in enumerate(settings.scripts):
        key = "path"
        try:
            places = _collect_custom_script_files(settings.directory, listed)
            key = "run"
            _require_run_file_startable(listed, places)
            key = "path"
            for _ in _read_portable_contents_within_limit(listed, places):
                pass
        except BundleError as err:
            yield Finding("HPK-O010", f"{AT}[{index}].{key}", err.message, err.hint or "Correct the path")


def _collect_custom_script_files(directory: Path, listed: ListedScript) -> dict[str, Path]:
    """Return path below the script's directory -> file, of all that travels in the bundle."""
    top = directory / listed.path
    hint = f"put the files of the script {listed.script.name} there, or correct `path`"
    try:
        kind = os.lstat(top).st_mode
    except FileNotFoundError:
        raise BundleError(f"{top} does not exist", hint=hint) from None
    except (OSError, ValueError) as err:  # a name that is too long, or that no file can have
        raise BundleError(f"`path` of the script {listed.script.name}: {err}", hint=hint) from err
    if stat.S_ISREG(kind):
        return {top.name: top}
    if not stat.S_ISDIR(kind):
        what = "is neither a file nor a directory"
        if stat.S_ISLNK(kind):
            what = "is a symbolic link"
        raise BundleError(f"{top} {what}", hint=hint)
    return dict(_walk_visible_files_refusing_links(top))


def _require_run_file_startable(listed: ListedScript, files_by_relative_path: dict[str, Path]) -> None:
    """Raise BundleError unless a node can start the script's `run` file."""
    script = listed.script
    if script.run not in files_by_relative_path:
        raise BundleError(
            f"{listed.path} has no {script.run!r}, which the script {script.name} starts",
            hint=f"write `run`: one of {', '.join(sorted(files_by_relative_path)[:5])}"
            if files_by_relative_path
            else "it has no files at all",
        )
    path = files_by_relative_path[script.run]
    data = _read_file(path)
    first = data[: data.find(b"\n") + 1]
    if not first.startswith(b"#!/") and (first.startswith(b"#!") or path.suffix not in WITHOUT_FIRST_LINE):
        raise BundleError(f"{path} does not begin with #!/, so no node can start it", hint="begin it with #!/bin/bash")
    if first.endswith(b"\r\n"):
        raise BundleError(f"{path} has Windows line ends, with which no script starts", hint=f"dos2unix {path}")


def _read_portable_contents_within_limit(
    listed: ListedScript, files_by_relative_path: dict[str, Path]
) -> Iterator[tuple[str, bytes]]:
    size = 0
    for name, path in sorted(files_by_relative_path.items()):
        data = _read_file(path)
        size += len(data)
        if size > LARGEST:
            raise BundleError(
                f"{listed.path} has more than {LARGEST >> 20} MiB",
                hint="keep large files in S3, and fetch them in the script",
            )
        portable.require_bundle_file_fit_for_nodes(f"{listed.script.bundle_directory}{name}", data)
        yield f"{listed.script.bundle_directory}{name}", data


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise BundleError(f"{path}: {err.strerror}", hint="make it readable, or leave it out") from err


def _walk_visible_files_refusing_links(top: Path) -> Iterator[tuple[str, Path]]:
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
                f"{Path(folder, links[0])} is a link or not a plain file, so S3 cannot store it",
                hint="put the file there",
            )
