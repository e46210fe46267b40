"""Names in a directory which others may write to, held before anything is asked of them.

Others may put there what a file system of theirs serves: whoever may mount FUSE on a directory or a file of his own
(fusermount, `allow_other`) can let an open, a stat or a listing of it wait for ever. A descriptor that only names the
place (O_PATH) asks nobody anything, and the kernel says which mount it is of.

Imports nothing that is not compiled in: the shortest of the timers' programs uses it.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import sys

_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_EMPTY_PATH = 0x1000
_PIECE = 1 << 16
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def mount_id_of(fd: int) -> str:
    """The number of the mount that a descriptor is of. Raises OSError."""
    try:
        facts = _read_proc(f"/proc/self/fdinfo/{fd}")
    except PermissionError:
        # Before Linux 5.14, where this process was root and has become a user: what its user must not read of it, it
        # cannot read itself.
        return mount_id_by_handle_or_none_text(fd)
    number = facts.partition(b"mnt_id:")[2].split(None, 1)
    if number:
        return number[0].decode()
    return ""


def fuse_server_uid_or_zero(mount_id: str) -> int:
    """The uid of the user who serves that mount (FUSE), as the kernel has it; 0 for one that the kernel or root serves.
    Raises OSError."""
    first = mount_id.encode()
    for line in _read_proc("/proc/self/mountinfo").split(b"\n"):
        before, _, after = line.partition(b" - ")
        if before.split(b" ", 1)[0] != first:
            continue
        for option in after.rpartition(b" ")[2].split(b","):
            if option.startswith(b"user_id="):
                return int(option[len(b"user_id=") :])
    return 0


def _read_proc(path: str) -> bytes:
    """A file of /proc, whole. A walk reads one for each directory, so it goes without a stream of Python's."""
    reader = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(reader, _PIECE)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(reader)


def mount_id_by_handle_or_none_text(fd: int) -> str:
    """The same from name_to_handle_at(2), which a file system that serves no handles, as FUSE's mostly do not, refuses:
    then it is "none", which no directory of ours is of. Raises OSError."""
    import ctypes

    handle = ctypes.create_string_buffer((128).to_bytes(4, sys.byteorder), 4 + 4 + 128)
    number = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.name_to_handle_at(fd, b"", handle, ctypes.byref(number), _EMPTY_PATH) == 0:
        return str(number.value)
    if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.EOVERFLOW):
        return "none"
    raise OSError(ctypes.get_errno(), "the kernel does not report its mount")


def open_path_fd_refusing_mount(name: str, directory_fd: int, directory_mount_id: str = "") -> int:
    """A descriptor that names what lies in the directory `folder` under `name`: a link itself, not what it leads to.

    `mount`: the directory's, where it is known. Raises OSError: EXDEV where something is mounted on that name.
    """
    fd = os.open(name, _NAME, dir_fd=directory_fd)
    try:
        if mount_id_of(fd) != (directory_mount_id or mount_id_of(directory_fd)):
            raise OSError(errno.EXDEV, "something is mounted there", name)
        return fd
    except BaseException:
        os.close(fd)
        raise


def reopen_path_fd(fd: int, flags: int) -> int:
    """What a held descriptor names, opened: this very file, whatever has come into its place. Raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", flags | _OPEN)
