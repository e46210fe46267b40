"""A file or a directory that others write into: there when it is complete and synced, or not at all.

It grows in a directory beside its place that is closed to others and held by its descriptor: torch's writers name by
path what they make, and whoever may write to the directory around it can exchange nothing on that path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from hyperpod_kit.checkpoint.repository.store.durable import sync_folder
from hyperpod_kit.errors import UntrustedPlace
from hyperpod_kit.untrusted import owned_directory, walk
from hyperpod_kit.untrusted.files import DIRECTORY
from hyperpod_kit.untrusted.identity import require_user_owned


@contextlib.contextmanager
def atomic_output(target: Path) -> Iterator[Path]:
    """Yield a path in a private directory beside `target`; at the end of the block what was written
    there is synced and renamed to `target`, and after an error it is removed. Raises
    UntrustedPlace, OSError."""
    parent = walk.open_directory(str(target.absolute().parent))
    room = f".{target.name}.{secrets.token_hex(4)}"
    try:
        inner = _make_private_directory(room, parent, target)
        try:
            path = Path(f"/proc/self/fd/{inner}", target.name)
            yield path
            _sync(path)
            if path.is_dir():
                for written in path.rglob("*"):
                    _sync(written)
            os.rename(target.name, target.name, src_dir_fd=inner, dst_dir_fd=parent)
        finally:
            _remove_directory_and_close(room, inner, parent)
        sync_folder(parent)
    finally:
        os.close(parent)


def directory_after_rename(path: Path) -> Path:
    """Return the directory in which what is written at `path` will lie after the rename, for messages."""
    room = path.parent.resolve()
    if path.is_relative_to("/proc/self/fd"):
        return room.parent
    return room


def _make_private_directory(name: str, parent_fd: int, target: Path) -> int:
    """Make a directory for this user alone below `parent_fd` and return its descriptor. Raises
    UntrustedPlace when another user exchanged it."""
    os.mkdir(name, 0o700, dir_fd=parent_fd)
    inner = os.open(name, DIRECTORY, dir_fd=parent_fd)
    try:
        require_user_owned(os.fstat(inner), str(target), inner, root_too=False)
        if os.listdir(inner):
            # Another has put a directory of this user's in its place: what it holds is not to be moved or removed.
            raise UntrustedPlace(f"{target.parent} was replaced by another user while {target.name} was written there")
        return inner
    except BaseException:
        os.close(inner)
        raise


def _remove_directory_and_close(name: str, directory_fd: int, parent_fd: int) -> None:
    with contextlib.suppress(OSError):
        for entry in os.listdir(directory_fd):
            owned_directory.remove_file_or_tree(entry, directory_fd)
        os.rmdir(name, dir_fd=parent_fd)
    os.close(directory_fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
