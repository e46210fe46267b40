"""The one place that makes, fills and empties a directory of this process's user below one that others may write to.

Others may have laid a link, a file or a directory of theirs in any place before, and may exchange what lies in a
directory of theirs at any moment. So each directory is a descriptor, opened without following a link and looked at
once it is open, and everything in it is named relative to that descriptor: what has been looked at is what is changed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from types import TracebackType
from typing import Container, Iterator, List, Optional, Tuple, Type

from hyperpod_kit.untrusted import walk
from hyperpod_kit.untrusted.files import DIRECTORY, MAYBE_NO_FILE, READ
from hyperpod_kit.untrusted.identity import (
    foreign_error,
    not_regular_error,
    require_own_or_root_regular_file,
    require_user_owned,
)

_WRITE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DEEPEST = 256
"""Levels that a removal descends with a descriptor each; what lies deeper is first moved up."""


class OwnedDirectory:
    """A directory that is held by its descriptor. `path`: as people write it, for messages. Safe for threads.

    Names are relative, their parts separated by "/". Each directory on the way has to be this user's, or root's.
    """

    def __init__(self, handle: int, path: str) -> None:
        self.handle = handle
        self.path = path

    @classmethod
    def open_or_make(cls, path: str, *, make: bool = True, mode: int = 0o755) -> OwnedDirectory:
        """The directory `path`, which is this user's, or root's.

        `make`: make what is missing of it. Raises Untrusted when it is another's, with whose it is, OSError.
        """
        parent, name = os.path.split(os.path.abspath(path))
        if make and name:
            above = walk.open_directory(parent, make=True)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=above)
            finally:
                os.close(above)
        handle = walk.open_directory(os.path.abspath(path))
        try:
            require_user_owned(os.fstat(handle), path, handle)
            return cls(handle, path)
        except BaseException:
            os.close(handle)
            raise

    def ensure_directory(self, name: str, mode: int = 0o700) -> OwnedDirectory:
        """A directory in this one that is exactly this user's and has this mode; it is made when it is missing.

        Raises Untrusted for anything else in its place, OSError.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.handle)
        handle = self._open_directory(self.handle, name, self.path)
        try:
            status = os.fstat(handle)
            require_user_owned(status, self.path_of(name), handle, root_too=False)
            if stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(handle, mode)
            return OwnedDirectory(handle, self.path_of(name))
        except BaseException:
            os.close(handle)
            raise

    def __enter__(self) -> OwnedDirectory:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory's descriptor; a second call does nothing."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def path_of(self, name: str) -> str:
        """The path of a name in it, for messages."""
        return os.path.join(self.path, name)

    @property
    def proc_fd_path(self) -> str:
        """A path of this very directory that no renaming changes, for programs of this user that this process starts
        and that take paths only. Good for as long as the directory is open."""
        return f"/proc/{os.getpid()}/fd/{self.handle}"

    # --- files --------------------------------------------------------------------------------------------------

    def open(self, name: str, flags: int, mode: int = 0o600, *, make: bool = False) -> int:
        """A descriptor of a regular file of this user, or root's; `make`: the directories on the way too.

        A file that is opened for writing has no other name. Raises Untrusted for anything else in its place,
        FileNotFoundError, OSError.
        """
        with self.open_containing_directory(name, make) as (folder, last):
            try:
                handle = os.open(last, flags | _WRITE, mode, dir_fd=folder)
            except OSError as err:
                if err.errno in (*MAYBE_NO_FILE, errno.EISDIR) and self._exists_but_not_regular(last, folder):
                    raise not_regular_error(self.path_of(name)) from None
                raise
        try:
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
            require_own_or_root_regular_file(os.fstat(handle), self.path_of(name), self.handle, single_link=writes)
            os.set_blocking(handle, True)
            return handle
        except BaseException:
            os.close(handle)
            raise

    def status(self, name: str) -> Optional[os.stat_result]:
        """What lies under a name, a link itself; None for nothing. Raises Untrusted, OSError."""
        try:
            with self.open_containing_directory(name, make=False) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> List[str]:
        """What is in it. Raises OSError."""
        return os.listdir(self.handle)

    def free_bytes(self) -> int:
        """Return the bytes that this user may still write to its file system. Raises OSError."""
        room = os.fstatvfs(self.handle)
        return room.f_bavail * room.f_frsize

    def move_from(self, source: OwnedDirectory, name: str, target: str, *, durable: bool = True) -> None:
        """Move a file of `source` to `target` in this directory, once its bytes are on disk.

        Directories on the way are made. Raises Untrusted, OSError.
        """
        if durable:
            handle = source.open(name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        with source.open_containing_directory(name, make=False) as (source_folder, last):  # noqa: SIM117  # not in one line on Python 3.8
            with self.open_containing_directory(target, make=True) as (target_folder, target_name):
                os.replace(last, target_name, src_dir_fd=source_folder, dst_dir_fd=target_folder)

    def remove_file_or_tree(self, name: str) -> None:
        """Remove a file, a link itself, or a directory with what is in it. What is not there is fine.

        Raises Untrusted, OSError.
        """
        with contextlib.suppress(FileNotFoundError), self.open_containing_directory(name, make=False) as (folder, last):
            remove_file_or_tree(last, folder)

    def clear(self, keep: Container[str] = ()) -> None:
        """Remove everything in it but the names in `keep`. Raises OSError."""
        for name in os.listdir(self.handle):
            if name not in keep:
                remove_file_or_tree(name, self.handle)

    @contextlib.contextmanager
    def open_containing_directory(self, name: str, make: bool) -> Iterator[Tuple[int, str]]:
        """(a descriptor of the directory in which `name` lies, its last part), for `dir_fd=`; `make`: make the
        directories on the way. Raises Untrusted, OSError."""
        *parts, last = name.split("/")
        if any(part in ("", ".", "..") for part in (*parts, last)):
            raise ValueError(f"{name!r} is not a name below {self.path}")
        here, opened, path = self.handle, -1, self.path
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=here)
                inner = self._open_directory(here, part, path)
                path = os.path.join(path, part)
                if opened >= 0:
                    os.close(opened)
                here = opened = inner
                require_user_owned(os.fstat(here), path, here)
            yield here, last
        finally:
            if opened >= 0:
                os.close(opened)

    @staticmethod
    def _open_directory(folder: int, name: str, above: str) -> int:
        """A directory, opened through no link. Raises Untrusted for anything else, OSError."""
        try:
            return os.open(name, DIRECTORY, dir_fd=folder)
        except OSError as err:
            if err.errno not in (*MAYBE_NO_FILE, errno.EACCES):
                raise
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            raise foreign_error(status, os.path.join(above, name), "a directory") from None

    @staticmethod
    def _exists_but_not_regular(name: str, folder: int) -> bool:
        with contextlib.suppress(OSError):
            return not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        return False


def remove_file_or_tree(name: str, directory_fd: int) -> None:
    """Remove what lies in the directory `folder` under `name`: a file, a link itself, or a directory with what is in
    it, through no link and without crossing to what is mounted there. What is not there is fine. Raises OSError."""
    try:
        os.unlink(name, dir_fd=directory_fd)
        return
    except FileNotFoundError:
        return
    except OSError as err:
        if err.errno not in (errno.EISDIR, errno.EPERM):
            raise
        failure = err
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode):
        raise failure
    remaining = [name]
    while remaining:
        _remove_tree_moving_deepest_up(remaining.pop(), directory_fd, 0, directory_fd, remaining)


def _remove_tree_moving_deepest_up(
    name: str, folder: int, level: int, top_fd: int, moved_up_for_later: List[str]
) -> None:
    if level > _DEEPEST:
        # A tree may be as deep as its maker likes: what is left of it is moved up, to be removed after the rest.
        moved_up_for_later.append(f".hpk-removed-{os.urandom(8).hex()}")
        os.rename(name, moved_up_for_later[-1], src_dir_fd=folder, dst_dir_fd=top_fd)
        return
    inner = os.open(name, DIRECTORY, dir_fd=folder)
    try:
        if os.fstat(inner).st_dev != os.fstat(folder).st_dev:
            raise OSError(errno.EXDEV, "something is mounted there", name)
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except FileNotFoundError:
                continue
            except OSError as err:
                if err.errno not in (errno.EISDIR, errno.EPERM):
                    raise
                if not stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                    raise
                _remove_tree_moving_deepest_up(entry, inner, level + 1, top_fd, moved_up_for_later)
    finally:
        os.close(inner)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def read_file_cut_at(directory: OwnedDirectory, name: str, most: int) -> bytes:
    """A small file of this user in that directory, whole; more than `most` bytes are cut. Raises Untrusted, OSError."""
    handle = directory.open(name, READ)
    try:
        parts: List[bytes] = []
        size = 0
        while size < most:
            part = os.read(handle, min(1 << 20, most - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    finally:
        os.close(handle)
