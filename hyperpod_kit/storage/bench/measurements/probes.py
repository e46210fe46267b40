"""What a mount can do, found by doing it: a dozen small operations in a scratch directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Callable, Dict, NamedTuple

from hyperpod_kit.untrusted import by_descriptor


class ProbeResult(NamedTuple):
    """Result of a probe.

    `can`: whether it works; `why`: the error when it does not, what was seen where that says more.
    """

    can: bool
    why: str = ""


def run_probes(directory: Path) -> Dict[str, ProbeResult]:
    """Probe every capability, by name, in an empty directory that the caller removes."""
    results = {}
    for name, run_probe in _PROBES.items():
        probe_directory = directory / name
        by_descriptor.make_directory(probe_directory)
        try:
            results[name] = run_probe(probe_directory)
        except OSError as err:
            results[name] = ProbeResult(False, err.strerror or str(err))
    return results


def _write_file(path: Path, data: bytes = b"old") -> Path:
    by_descriptor.write_bytes(path, data)
    return path


def _probe_rename(directory: Path) -> ProbeResult:
    by_descriptor.rename(_write_file(directory / "a"), directory / "b")
    return ProbeResult((directory / "b").read_bytes() == b"old" and not (directory / "a").exists())


def _probe_rename_over(directory: Path) -> ProbeResult:
    by_descriptor.rename(_write_file(directory / "a", b"new"), _write_file(directory / "b"))
    return ProbeResult((directory / "b").read_bytes() == b"new")


def _probe_rename_directory(directory: Path) -> ProbeResult:
    by_descriptor.make_directory(directory / "a")
    _write_file(directory / "a" / "file")
    by_descriptor.rename(directory / "a", directory / "b")
    return ProbeResult((directory / "b" / "file").exists())


def _probe_append(directory: Path) -> ProbeResult:
    path = _write_file(directory / "a")
    with by_descriptor.open_stream_for_writing(path, "ab") as file:
        file.write(b"er")
    return ProbeResult(path.read_bytes() == b"older")


def _probe_overwrite(directory: Path) -> ProbeResult:
    path = _write_file(directory / "a", b"old" * 1000)
    with by_descriptor.open_stream_for_writing(path, "r+b") as file:
        file.seek(3)
        file.write(b"NEW")
    return ProbeResult(path.read_bytes() == b"oldNEW" + b"old" * 998)


def _probe_flock(directory: Path) -> ProbeResult:
    """Probe that a lock keeps a second opener out, which is more than that the call succeeds.

    By hand: it is the call itself that is looked at.
    """
    path = _write_file(directory / "a")
    with path.open("rb") as first, path.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ProbeResult(True)
    return ProbeResult(False, "two processes held the lock at the same time")


def _probe_atime(directory: Path) -> ProbeResult:
    """Probe whether a read moves the access time: the file is aged first, for relatime moves only an old one."""
    path = _write_file(directory / "a")
    by_descriptor.set_times(path, (1e9, 1e9 + 1))
    before = path.stat().st_atime
    if before != 1e9:
        return ProbeResult(False, "an access time cannot be set")
    path.read_bytes()
    if path.stat().st_atime > before + 1:
        return ProbeResult(True)
    return ProbeResult(False, "a read did not change the access time")


def _probe_hard_link(directory: Path) -> ProbeResult:
    by_descriptor.link(_write_file(directory / "a"), directory / "b")
    return ProbeResult((directory / "b").stat().st_nlink == 2)


def _probe_symbolic_link(directory: Path) -> ProbeResult:
    by_descriptor.symlink("a", directory / "b")
    return ProbeResult(os.readlink(directory / "b") == "a")


def _probe_mode(directory: Path) -> ProbeResult:
    path = _write_file(directory / "a")
    by_descriptor.set_mode(path, 0o640)
    return ProbeResult(path.stat().st_mode & 0o777 == 0o640)


def _probe_sync_directory(directory: Path) -> ProbeResult:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return ProbeResult(True)


def _probe_exclusive_create(directory: Path) -> ProbeResult:
    """Probe that a file which is there cannot be made again."""
    path = _write_file(directory / "a")
    try:
        os.close(by_descriptor.open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return ProbeResult(True)
    return ProbeResult(False, "two processes created the same file")


_PROBES: Dict[str, Callable[[Path], ProbeResult]] = {
    "rename": _probe_rename,
    "rename_over": _probe_rename_over,
    "rename_directory": _probe_rename_directory,
    "append": _probe_append,
    "overwrite": _probe_overwrite,
    "exclusive_create": _probe_exclusive_create,
    "flock": _probe_flock,
    "atime": _probe_atime,
    "hard_link": _probe_hard_link,
    "symbolic_link": _probe_symbolic_link,
    "mode": _probe_mode,
    "sync_directory": _probe_sync_directory,
}
