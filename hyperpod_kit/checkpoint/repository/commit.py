"""The write path on storage: files are created, never renamed, overwritten or deleted.

Order of a commit: the attempt's directory, its shards (every agent its own), extra.json, MANIFEST.json. Each file is
synced before the next begins; only the last one makes the checkpoint exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
import uuid
from typing import Any, Dict, NamedTuple, Optional

from hyperpod_kit.errors import CheckpointError, RunIsOwned

from . import catalog, layout, manifest
from .failpoint import failpoint

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EPERM, errno.EACCES,
               errno.EXDEV)


class RunIdentity(NamedTuple):
    """Who writes to a root: the name that people gave the run, and an id that no other root has."""

    run: str
    run_id: str


def now() -> str:
    """The time as in all files of the format, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def sync_directory(path: str) -> None:
    """fsync a directory where the file system has such a thing; object stores do not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view):]


def write_once(path: str, data: bytes) -> None:
    """Create `path` with `data` and sync it and its directory. Raises FileExistsError, OSError.

    Where the file system can, the file gets its name only after its bytes are on disk (O_TMPFILE and linkat), so it
    is never seen torn. Elsewhere it is created with O_EXCL; a torn file then fails its own digest.
    """
    folder = os.path.dirname(path)
    if not _link_whole(folder, path, data):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    sync_directory(folder)


def _link_whole(folder: str, path: str, data: bytes) -> bool:
    """Write an unnamed file and link it to `path`; False where the file system cannot."""
    try:
        fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
    except OSError as err:
        if err.errno in _NO_TMPFILE:
            return False
        raise
    try:
        write_all(fd, data)
        os.fsync(fd)
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With a directory descriptor Python calls linkat(AT_SYMLINK_FOLLOW), which /proc/self/fd needs.
            os.link(f"/proc/self/fd/{fd}", os.path.basename(path), src_dir_fd=here, dst_dir_fd=here,
                    follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as err:
            if err.errno in _NO_TMPFILE:
                return False
            raise
        finally:
            os.close(here)
        return True
    finally:
        os.close(fd)


def open_root(root: str, run: Optional[str] = None) -> RunIdentity:
    """Make the root and RUN.json if they are not there, and return whose root it is.

    Raises RunIsOwned when another run writes here, CheckpointError when RUN.json is damaged, OSError.
    """
    os.makedirs(root, exist_ok=True)
    path = os.path.join(root, layout.RUN_FILE)
    found = _read_run(path)
    if found is None:
        name = run or os.path.basename(os.path.abspath(root)) or "run"
        body = {"format": layout.RUN_FORMAT, "run": name, "id": uuid.uuid4().hex, "created": now()}
        # FileExistsError: somebody else was first, so theirs counts.
        with contextlib.suppress(FileExistsError):
            write_once(path, manifest.seal_json(body))
        found = _read_run(path)
    if found is None:
        raise CheckpointError(f"{path} vanished while it was written")
    if run is not None and found.run != run:
        raise RunIsOwned(f"{root} belongs to run {found.run!r}, this is run {run!r}",
                         hint="give each run a root of its own")
    return found


def open_existing(root: str) -> RunIdentity:
    """Whose root this is. Raises CheckpointError when it is not a checkpoint root (or its mount is gone)."""
    found = _read_run(os.path.join(root, layout.RUN_FILE))
    if found is None:
        raise CheckpointError(f"{root} has no {layout.RUN_FILE}: it is no checkpoint root, or its mount is gone")
    return found


def _read_run(path: str) -> Optional[RunIdentity]:
    try:
        with open(path, "rb") as file:
            body = manifest.open_json(file.read(), layout.RUN_FILE)
    except FileNotFoundError:
        return None
    if body.get("format") != layout.RUN_FORMAT:
        raise CheckpointError(f"{path} has format {body.get('format')!r}, expected {layout.RUN_FORMAT!r}")
    return RunIdentity(str(body["run"]), str(body["id"]))


def claim_epoch(root: str, identity: RunIdentity, *, above: int, job: Dict[str, Any]) -> int:
    """Take the next epoch, which nobody else has or will have: a file created with O_EXCL. Raises OSError."""
    epoch = max(above, catalog.highest(root)[0]) + 1
    while True:
        body = {"format": layout.RUN_FORMAT, "id": identity.run_id, "epoch": epoch, "host": socket.gethostname(),
                "pid": os.getpid(), "job": job, "time": now()}
        try:
            write_once(os.path.join(root, layout.epoch_file(epoch)), manifest.seal_json(body))
            return epoch
        except FileExistsError:
            epoch += 1


def make_attempt(root: str, attempt: str) -> str:
    """Make an attempt's directory (each agent may) and return its path. Raises OSError."""
    path = os.path.join(root, attempt)
    os.makedirs(path, exist_ok=True)
    return path


def commit(root: str, attempt: str, body: manifest.Manifest, extra: bytes) -> None:
    """Write extra.json and then the manifest. All shards must be on disk. Raises FileExistsError, OSError."""
    path = os.path.join(root, attempt)
    failpoint("commit.before_extra")
    write_once(os.path.join(path, layout.EXTRA_FILE), extra)
    sync_directory(root)
    failpoint("commit.before_manifest")
    write_once(os.path.join(path, layout.MANIFEST_FILE), body.encode())
    failpoint("commit.after_manifest")
