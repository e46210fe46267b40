"""The one place that changes what lies at a path: files and directories are made, written, moved and removed here.

Any directory on the way may be one that others write to. So the way is walked through no link of theirs, what lies at
its end is named relative to the descriptor of its directory, and nothing is written or emptied that is not this user's
or root's, whatever is exchanged meanwhile. Who changes much in one directory holds an `OwnedDirectory` instead.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, Any, Callable, Iterator, List, Optional, Tuple, Union

from hyperpod_kit.errors import UntrustedPlace
from hyperpod_kit.untrusted import owned_directory, walk
from hyperpod_kit.untrusted.files import DIRECTORY, MAYBE_NO_FILE, READ, read_all_or_raise_too_large
from hyperpod_kit.untrusted.identity import not_regular_error, require_own_or_root_regular_file, require_user_owned

AnyPath = Union[str, "os.PathLike[str]"]

DIRECTORY_MODE = 0o775
"""Before the umask: a directory that all may write to is asked for by its mode."""

_WRITE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_GIVEN = {"/dev/stdout": 1, "/dev/stderr": 2, "/proc/self/fd/1": 1, "/dev/fd/1": 1, "/dev/fd/2": 2}

_MODES = {
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+": os.O_RDWR,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}


@contextlib.contextmanager
def parent_directory(path: AnyPath, *, make: bool = False, follow: bool = False) -> Iterator[Tuple[int, str]]:
    """(a descriptor of the directory of `path`, its name there), for `dir_fd=`: see `walk.open_parent`."""
    folder, name = walk.open_parent(os.fspath(path), make=make, follow=follow)
    try:
        yield folder, name
    except OSError as err:
        # People know it by its path.
        if err.filename == name:
            err.filename = os.fspath(path)
        if err.filename2 == name:
            err.filename2 = os.fspath(path)
        raise
    finally:
        os.close(folder)


def resolve_parent(path: AnyPath) -> str:
    """The same path by the directories that it leads through at this moment, whoever's links these are: for a place
    that a user named to share it with others, a run's root above all."""
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    return os.path.join(os.path.realpath(folder), name)


# --- directories ------------------------------------------------------------------------------------------------


def make_directory(path: AnyPath, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory that is not there yet. Raises FileExistsError, Untrusted, OSError."""
    with parent_directory(path) as (folder, name):
        os.mkdir(name, mode, dir_fd=folder)


def make_directories(path: AnyPath, mode: int = DIRECTORY_MODE, *, shared: bool = False, parents: bool = True) -> None:
    """Make the directory `path`, with those above it unless `parents` is False; one that is there must be this
    user's or root's, or, where it is `shared`, may be anybody's.

    Raises Untrusted, FileExistsError for a file in its place, FileNotFoundError, OSError.
    """
    with parent_directory(path, make=parents, follow=True) as (folder, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=folder)
        try:
            handle = os.open(name, _NAME | os.O_DIRECTORY, dir_fd=folder)
        except NotADirectoryError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path)) from None
    try:
        # A mount that has died cannot even be looked at, and is a directory all the same.
        if not shared:
            require_user_owned(os.fstat(handle), os.fspath(path), handle)
    finally:
        os.close(handle)


def make_parents(path: AnyPath) -> None:
    """Make the directories above `path`; those that are there may be anybody's. Raises Untrusted, OSError."""
    with parent_directory(path, make=True):
        pass


def remove_directory(path: AnyPath) -> None:
    """Remove an empty directory. Raises Untrusted, OSError."""
    with parent_directory(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: AnyPath, *, ignore_errors: bool = False) -> None:
    """Remove a directory with what is in it, through no link. `ignore_errors`: what cannot be removed stays.

    Raises FileNotFoundError, Untrusted, OSError.
    """
    try:
        with parent_directory(path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            owned_directory.remove_file_or_tree(name, folder)
    except OSError:
        if not ignore_errors:
            raise


def copy_tree(
    source: AnyPath,
    target: AnyPath,
    *,
    symlinks: bool = False,
    ignore: Optional[Callable[[str, List[str]], Any]] = None,
    exist_ok: bool = False,
) -> None:
    """Copy a tree into a directory of this user, which is made; `exist_ok`: it may be there. Raises Untrusted,
    OSError."""
    import shutil

    with parent_directory(target, make=True) as (folder, name):
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if not exist_ok:
                raise
        inner = os.open(name, DIRECTORY, dir_fd=folder)
    try:
        require_user_owned(os.fstat(inner), os.fspath(target), inner)
        here = f"/proc/self/fd/{inner}"
        shutil.copytree(os.fspath(source), here, symlinks=symlinks, ignore=ignore, dirs_exist_ok=True)
    finally:
        os.close(inner)


# --- names ------------------------------------------------------------------------------------------------------


def unlink(path: AnyPath, *, missing_ok: bool = False) -> None:
    """Remove a file, or a link itself. Raises FileNotFoundError unless `missing_ok`, Untrusted, OSError."""
    try:
        with parent_directory(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        if not missing_ok:
            raise


def rename(source: AnyPath, target: AnyPath) -> None:
    """Move a file or directory, in the place of a file that is there. Raises Untrusted, OSError."""
    with parent_directory(source) as (source_folder, name), parent_directory(target) as (target_folder, new):
        os.rename(name, new, src_dir_fd=source_folder, dst_dir_fd=target_folder)


def link(source: AnyPath, path: AnyPath) -> None:
    """Another name of a file, where nothing lies. Raises FileExistsError, Untrusted, OSError."""
    with parent_directory(source) as (source_folder, name), parent_directory(path) as (target_folder, new):
        os.link(name, new, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)


def symlink(target: AnyPath, path: AnyPath) -> None:
    """A link to `target`, where nothing lies. Raises FileExistsError, Untrusted, OSError."""
    with parent_directory(path) as (folder, name):
        os.symlink(os.fspath(target), name, dir_fd=folder)


def set_mode(path: AnyPath, mode: int) -> None:
    """Set the mode of a file or directory that is no link. Raises Untrusted, OSError."""
    with _open_non_link_as_proc_path(path) as handle:
        os.chmod(handle, mode)


def set_times(path: AnyPath, times: Optional[Tuple[float, float]] = None) -> None:
    """Set the times of access and change, by default to now, of a file or directory that is no link.

    Raises Untrusted, OSError.
    """
    with _open_non_link_as_proc_path(path) as handle:
        os.utime(handle, times)


def set_owner(path: AnyPath, user: int, group: int) -> None:
    """Set the owner of a file or directory that is no link. Raises Untrusted, OSError."""
    with _open_non_link_as_proc_path(path) as handle:
        os.chown(handle, user, group)


@contextlib.contextmanager
def _open_non_link_as_proc_path(path: AnyPath) -> Iterator[str]:
    with parent_directory(path) as (folder, name):
        handle = os.open(name, _NAME, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise UntrustedPlace(f"{os.fspath(path)} is a symbolic link, expected a file or a directory")
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


# --- files ------------------------------------------------------------------------------------------------------


def open_own_or_root_file(path: AnyPath, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file of this user or of root, with no other name, that waits for nobody.

    It is emptied, where `flags` say so, once it is known to be that. A link of this user or of root leads to it, and
    /dev/stdout is what this process has open.
    Raises Untrusted for anything else in its place, FileNotFoundError, FileExistsError, OSError.
    """
    given = _GIVEN.get(os.fspath(path))
    if given is not None:
        return os.dup(given)
    exclusive = bool(flags & os.O_EXCL)
    with parent_directory(path, follow=not exclusive) as (folder, name):
        try:
            handle = os.open(name, (flags & ~os.O_TRUNC) | _WRITE, mode, dir_fd=folder)
        except OSError as err:
            if err.errno in MAYBE_NO_FILE:
                raise not_regular_error(os.fspath(path)) from None
            raise
        try:
            if not exclusive:
                require_own_or_root_regular_file(os.fstat(handle), os.fspath(path), folder, single_link=True)
            if flags & os.O_TRUNC and os.fstat(handle).st_size:
                os.ftruncate(handle, 0)
            os.set_blocking(handle, not flags & os.O_NONBLOCK)
            return handle
        except BaseException:
            os.close(handle)
            raise


def read_own_or_root_file(path: AnyPath, most: int) -> bytes:
    """A file of this user or of root, whole: what another has put there would be taken for one's own memory of what was
    done. Raises Untrusted for anything else, also when it is larger than `most` bytes, FileNotFoundError, OSError."""
    with parent_directory(path, follow=True) as (folder, name):
        try:
            handle = os.open(name, READ, dir_fd=folder)
        except OSError as err:
            if err.errno in MAYBE_NO_FILE:
                raise not_regular_error(os.fspath(path)) from None
            raise
        try:
            facts = os.fstat(handle)
            require_own_or_root_regular_file(facts, os.fspath(path), folder, single_link=False)
            return read_all_or_raise_too_large(handle, os.fspath(path), facts.st_size, most)
        finally:
            os.close(handle)


def open_stream_for_writing(
    path: AnyPath, mode: str, *, encoding: Optional[str] = None, buffering: int = -1
) -> IO[Any]:
    """Open a stream as `open_own_or_root_file` does, for the modes of `open` that write. Raises Untrusted, OSError."""
    flags = _MODES[mode.replace("b", "").replace("t", "")]
    handle = open_own_or_root_file(path, flags)
    if "b" not in mode and encoding is None:
        encoding = "utf-8"
    return os.fdopen(handle, mode.replace("x", "w"), buffering, encoding=encoding)


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write `data` into a file, in place of what it held. Raises Untrusted, OSError."""
    with open_stream_for_writing(path, "wb") as out:
        out.write(data)


def write_text(path: AnyPath, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def touch(path: AnyPath, mode: int = 0o666) -> None:
    """Create a file, or set the times of the one that is there to now. Raises Untrusted, OSError."""
    handle = open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT, mode)
    try:
        os.utime(handle)
    finally:
        os.close(handle)


def copy_file(source: AnyPath, target: AnyPath) -> None:
    """Copy a file's bytes and mode. Raises Untrusted, OSError."""
    import shutil

    with open(source, "rb") as source_stream, open_stream_for_writing(target, "wb") as copy:
        shutil.copyfileobj(source_stream, copy)
        os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(source_stream.fileno()).st_mode) & 0o777)
