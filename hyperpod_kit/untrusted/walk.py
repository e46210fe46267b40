"""The way to a directory of which a part may be another user's: no link that they have laid is followed, and no file
system that they serve is asked anything.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import List, Optional, Tuple

from hyperpod_kit.errors import Untrusted, UntrustedPlace
from hyperpod_kit.untrusted import dirfd

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP_INTO = _STEP | os.O_DIRECTORY
"""An automounter mounts what is asked for as a directory, and nothing that is only named."""
_MOST_LINKS = 40
_MOST_STEPS = 1 << 16
_DESCRIPTOR_PATH = re.compile(r"/proc/(self|[0-9]+)/fd/[0-9]+(?=/|$)")


def open_directory(path: str, *, make: bool = False) -> int:
    """A descriptor of the directory `path`, for `dir_fd=` and to list it. `make`: make what is not there of it.

    Links of root and of this process's user are followed, /var/run for one. Raises Untrusted for a link of anybody
    else and for a mount that another user serves, OSError.
    """
    here = open_traversable(path, make=make)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def open_traversable(path: str, *, make: bool = False) -> int:
    """Return a descriptor as `open_directory` does, but for `dir_fd=` only: a directory in which this user may
    make files need not be one that it may list."""
    return _open_directory_by_trusted_walk(path, path, None, make, True)


def open_parent(
    path: str, *, make: bool = False, follow: bool = False, enter_own_mounts: bool = True
) -> Tuple[int, str]:
    """(a descriptor of the directory in which `path` lies, for `dir_fd=`; its name there), reached as `open_directory`
    is.

    `make`: make the directories on the way. `follow`: where a link of root's or of this user's lies at `path`, what it
    leads to. `own_mounts`: whether what this process's user serves is entered. Raises Untrusted, OSError.
    """
    folder, name = os.path.split(path.rstrip("/"))
    here = _open_directory_by_trusted_walk(folder, path, None, make, enter_own_mounts)
    for _ in range(_MOST_LINKS):
        target = None
        if follow:
            target = _trusted_link_target_else_close_directory(name, here, path, enter_own_mounts)
        if target is None:
            return here, name or "."
        folder, name = os.path.split(target.rstrip("/"))
        here = _open_directory_by_trusted_walk(folder, path, here, make, enter_own_mounts)
    os.close(here)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


NOBODY = 65534
"""Who looks for what is not there, in a directory into which anybody may put it the moment after."""


def uid_for_root_to_act_as(path: str) -> int:
    """Return the uid that root is to act as while it works on `path`, whose links are followed.

    What a user serves is that user's, whatever it says of itself. What is not there is looked for as
    whoever could put it there. Each link on the way has to be root's or that user's own: nobody has root
    act on what is another's. Raises Untrusted for a link of anybody else, OSError.
    """
    way = _OwnersOnTheWay(path)
    todo: List[str] = path.split("/")[::-1]
    here = _open_start_taking_over_fd(_split_start(path)[0], None)
    mount = dirfd.mount_id_of(here)
    try:
        way.record_directory_owner(here)
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            try:
                there = os.open(name, _STEP, dir_fd=here)
            except (FileNotFoundError, NotADirectoryError):
                return way.uid_who_could_create_absent_file(here)
            try:
                number = dirfd.mount_id_of(there)
                if number == mount:
                    server = 0
                else:
                    server = dirfd.fuse_server_uid_or_zero(number)
                if server:
                    return way.require_links_owned_by_and_return_uid(server)
                status = os.fstat(there)
                if not stat.S_ISLNK(status.st_mode):
                    mount = number
                    here, there = there, here
                    way.record_directory_owner(here)
                    continue
                target = os.readlink("", dir_fd=there)
                way.record_link_or_raise_too_many(name, status.st_uid, len(todo))
            finally:
                os.close(there)
            todo += target.split("/")[::-1]
            if target.startswith("/"):
                here = _open_start_taking_over_fd("/", here)
                mount = dirfd.mount_id_of(here)
        return way.require_links_owned_by_and_return_uid(os.fstat(here).st_uid)
    finally:
        os.close(here)


class _OwnersOnTheWay:
    """Who could lead it elsewhere: owners of links and of directories."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._links: List[Tuple[str, int]] = []
        self._latest = 0

    def record_directory_owner(self, handle: int) -> None:
        self._latest = os.fstat(handle).st_uid or self._latest

    def record_link_or_raise_too_many(self, name: str, uid: int, steps: int) -> None:
        self._links.append((name, uid))
        if len(self._links) > _MOST_LINKS or steps > _MOST_STEPS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)

    def require_links_owned_by_and_return_uid(self, uid: int) -> int:
        for name, owner in self._links:
            if owner not in (0, uid):
                raise Untrusted(
                    f"{name} on the way to {self._path} is a symbolic link of uid {owner} to something that is "
                    "not theirs",
                    hint=f"namei -l {self._path}",
                )
        return uid

    def uid_who_could_create_absent_file(self, directory_fd: int) -> int:
        writable_by_others = os.fstat(directory_fd).st_mode & 0o022
        if self._latest:
            return self.require_links_owned_by_and_return_uid(self._latest)
        if writable_by_others:
            return self.require_links_owned_by_and_return_uid(NOBODY)
        return self.require_links_owned_by_and_return_uid(0)


def _open_directory_by_trusted_walk(
    directory_path: str, path_for_messages: str, start_fd: Optional[int], make: bool, enter_own_mounts: bool
) -> int:
    """Open the directory `directory_path` step by step and return its descriptor. `start_fd`: the directory where
    it begins, closed or returned here; None for this process's. `path_for_messages`: what messages name.
    Raises Untrusted, OSError."""
    start, rest = _split_start(directory_path)
    todo: List[str] = rest.split("/")[::-1]
    walked: List[str] = []
    name, mount, links = "", "", 0
    here = start_fd
    try:
        here = _open_start_taking_over_fd(start, here)
        # No user serves the root of all paths, so that nothing is asked of the list of mounts until another comes.
        mount = dirfd.mount_id_of(here) if start == "/" else ""
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            there, is_directory = _open_step_and_is_directory(name, here, make)
            mount = _trusted_mount_id_else_close(there, mount, name, path_for_messages, enter_own_mounts)
            walked.append(name)
            if is_directory:
                here = _close_and_return(here, there)
                continue
            try:
                if not stat.S_ISLNK(os.fstat(there).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path_for_messages)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path_for_messages)
                target = _read_link_requiring_trusted_owner(there, name, path_for_messages)
            finally:
                os.close(there)
            todo += target.split("/")[::-1]
            if target.startswith("/"):
                here = _open_start_taking_over_fd("/", here)
        return here
    except BaseException as err:
        if here is not None:
            os.close(here)
        if isinstance(err, OSError) and err.filename == name:
            err.filename = os.path.join(start, *walked, name)  # people know it by its path
        raise


def _open_start_taking_over_fd(start: str, start_fd: Optional[int]) -> int:
    """Return a descriptor of the directory where a way begins; `start_fd` is that directory where the way is
    relative, and is closed otherwise. A process whose own directory was on a mount that is lost is still let
    into what it names from the root."""
    if not start and start_fd is not None:
        return start_fd
    origin = os.open(start or ".", os.O_PATH | os.O_CLOEXEC)
    if start_fd is None:
        return origin
    return _close_and_return(start_fd, origin)


def require_trusted_mount_else_close(
    entry_fd: int, directory_fd: int, name: str, path: str, own_mounts: bool = True
) -> None:
    """Raises Untrusted where a file system that another user serves is mounted on an entry of `folder`, before anything
    is asked of it; OSError."""
    _trusted_mount_id_else_close(entry_fd, dirfd.mount_id_of(directory_fd), name, path, own_mounts)


def _trusted_mount_id_else_close(entry_fd: int, previous_mount_id: str, name: str, path: str, own_mounts: bool) -> str:
    """The mount that a descriptor is of; `mount`: that of the one before. It takes the descriptor when it raises
    Untrusted, OSError."""
    try:
        number = dirfd.mount_id_of(entry_fd)
        # As root acts with a user's rights, what that user serves is still another's.
        if number == previous_mount_id:
            server = 0
        else:
            server = dirfd.fuse_server_uid_or_zero(number)
        if server == 0 or (server == os.getuid() and own_mounts):
            return number
        raise UntrustedPlace(
            f"on {name}, on the way to {path}, uid {server} has mounted a file system of theirs", hint="findmnt"
        )
    except BaseException:
        os.close(entry_fd)
        raise


def _split_start(way: str) -> Tuple[str, str]:
    """(where a way begins; the rest of it): "" is the directory where it is seen from. What a process holds by a
    descriptor is no link of a user's but the directory itself."""
    match = _DESCRIPTOR_PATH.match(way)
    if match:
        return match[0], way[match.end() :]
    if way.startswith("/"):
        return ("/", way)
    return ("", way)


def _close_and_return(here: int, there: int) -> int:
    os.close(here)
    return there


def _trusted_link_target_else_close_directory(
    name: str, directory_fd: int, path: str, own_mounts: bool
) -> Optional[str]:
    """Where the link at `name` leads; None when there is none. It takes `folder` when it raises Untrusted, OSError."""
    try:
        handle = os.open(name or ".", _STEP, dir_fd=directory_fd)
        require_trusted_mount_else_close(handle, directory_fd, name, path, own_mounts)
    except FileNotFoundError:
        return None
    except BaseException:
        os.close(directory_fd)
        raise
    try:
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            return None
        return _read_link_requiring_trusted_owner(handle, name, path)
    except BaseException:
        os.close(directory_fd)
        raise
    finally:
        os.close(handle)


def _read_link_requiring_trusted_owner(link_fd: int, name: str, path: str) -> str:
    owner = os.fstat(link_fd).st_uid
    if owner not in (0, os.geteuid()):
        raise UntrustedPlace(
            f"{name} on the way to {path} is a symbolic link of uid {owner}, expected a directory",
            hint=f"namei -l {path}",
        )
    return os.readlink("", dir_fd=link_fd)


def _open_step_and_is_directory(name: str, here: int, make: bool) -> Tuple[int, bool]:
    """A descriptor of what lies at `name`, a link itself; whether it is a directory. Raises OSError."""
    try:
        return os.open(name, _STEP_INTO, dir_fd=here), True
    except NotADirectoryError:
        return os.open(name, _STEP, dir_fd=here), False
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o775, dir_fd=here)
    return _open_step_and_is_directory(name, here, False)
