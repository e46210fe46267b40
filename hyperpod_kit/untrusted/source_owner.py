"""Root reads what a user named as a source with that user's rights, whatever a link in it leads to at that moment.

For commands that read as one user and write as another, in many threads: each thread has the rights for as long as it
opens or lists something, and the whole of the process stays root. As the owner nothing is opened that the owner could
not open; what is open already is read with any rights.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import threading
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, TypeVar

from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.untrusted import files, owner, walk

_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""Numbers of the system call: the C library's function would change the groups of every thread."""
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")
_owner: Optional[int] = None
_thread = threading.local()


EACH_ITS_OWN = -1
"""In place of a user: below a directory of root's each file is opened as its own owner, to whom every link on the way
to it must belong that is not root's."""


def process_source_uid_or_none() -> Optional[int]:
    """Return the uid as which this process opens its sources, for a process that it starts; None for its own
    user."""
    return _owner


def set_process_source_uid(uid: Optional[int]) -> None:
    """Set the uid as which sources are opened from now on: what `process_source_uid_or_none` returned in the process
    that started this one."""
    global _owner
    _owner = uid


def _run_directly(path: str, what: Callable[[], int]) -> int:
    return what()


@contextlib.contextmanager
def opening_sources_as_owner_of(
    paths: Sequence[str], run_bounded: Callable[[str, Callable[[], int]], int] = _run_directly
) -> Iterator[None]:
    """In the block sources are opened as whoever owns these places, where this process is root and they are another's.

    `query(place, what)` gives what `what()` does, in bounded time where the place may hang.
    Raises UsageError for places of two users, Untrusted for a link of anybody else, Unreachable, OSError.
    """
    uid = None
    if owner.is_machine_root() and paths:
        uid = _single_non_root_owner_or_none(paths, run_bounded) or EACH_ITS_OWN
    outer = _owner
    set_process_source_uid(uid)
    try:
        yield
    except PermissionError as err:
        if uid is None or uid == EACH_ITS_OWN:
            raise
        raise Unreachable(
            f"{err.filename or paths[0]}: {_user_name_or_uid_text(uid)}, who owns the source, may not read it",
            hint="root reads what a user owns with that user's rights: give the file to that user",
        ) from None
    finally:
        set_process_source_uid(outer)


@contextlib.contextmanager
def thread_acting_as_source_owner(path: Optional[str] = None) -> Iterator[None]:
    """What is opened in the block by this thread is opened as the owner of the sources. `path`: what is opened, for
    sources that are each its own owner's; without it root lists them. Raises Untrusted, OSError."""
    uid = _owner
    if uid is None or getattr(_thread, "acting", False):
        yield
        return
    if uid == EACH_ITS_OWN:
        uid = 0
        if path is not None:
            uid = walk.uid_for_root_to_act_as(os.path.abspath(path))
        if not uid:
            yield
            return
    before, after = (os.getegid(), os.getgroups()), owner.primary_and_supplementary_groups(uid)
    try:
        _set_thread_user(uid, *after)
    except OSError:
        _set_thread_user(0, *before)
        raise
    _thread.acting = True  # and not before: what could not become the user must not open anything as root
    try:
        yield
    finally:
        _set_thread_user(0, *before)
        _thread.acting = False


def open_nonblocking_as_source_owner(path: str, _flags: int = 0) -> int:
    """`files.open_nonblocking` with these rights: the `opener` of an `open` that reads a source."""
    with thread_acting_as_source_owner(path):
        if _owner == EACH_ITS_OWN and not getattr(_thread, "acting", False):
            return _open_as_root_unless_link(path)
        return files.open_nonblocking(path)


def _open_as_root_unless_link(path: str) -> int:
    """What belonged to root a moment ago may be a link of somebody else's by now, which is not followed."""
    folder, name = walk.open_parent(os.path.abspath(path), follow=True)
    try:
        return os.open(name, files.GIVEN | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def wrap_as_source_owner(what: Callable[[], T]) -> Callable[[], T]:
    """The same call, which whatever thread it is made by makes as the owner of the sources."""

    def call() -> T:
        with thread_acting_as_source_owner():
            return what()

    return call


def _single_non_root_owner_or_none(
    paths: Sequence[str], run_bounded: Callable[[str, Callable[[], int]], int]
) -> Optional[int]:
    """None for root's own."""
    absolute = [os.path.abspath(path) for path in paths]
    owners = {run_bounded(path, functools.partial(walk.uid_for_root_to_act_as, path)) for path in absolute} - {0}
    if len(owners) > 1:
        names = " and ".join(sorted(map(_user_name_or_uid_text, owners)))
        raise UsageError(
            f"the sources belong to {names}: root reads those of one user at a time, with that user's rights",
            hint="run the command for each of them, or as a user who may read both",
        )
    if owners:
        return owners.pop()
    return None


def _user_name_or_uid_text(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _set_thread_user(uid: int, gid: int, groups: List[int]) -> None:
    """This thread alone: groups first, for root alone may change them. Raises OSError, with nothing half done."""
    number = _SETGROUPS.get(os.uname().machine)
    if number is None:
        raise OSError(f"the system calls of {os.uname().machine} are not known")
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _libc.syscall(number, len(groups), array):
        raise OSError(ctypes.get_errno(), "setgroups")
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _thread_fsuid_and_fsgid() != (uid, gid):
        raise OSError(f"this thread could not become uid {uid}, gid {gid}")


def _thread_fsuid_and_fsgid() -> Tuple[int, int]:
    """What a thread opens files as: an id that cannot be is refused, and the one that holds is given back."""
    return int(_libc.setfsuid(ctypes.c_uint32(-1).value)), int(_libc.setfsgid(ctypes.c_uint32(-1).value))
